//! `[access]` of the worker's settings.

use std::path::{Path, PathBuf};

use ringtune_shared::{
    daemon::settings::SettingsError,
    job::{ModelLocation, S3Model},
};
use serde::{Deserialize, Serialize};

use super::{
    hubs::{Hub, Hubs},
    rules::{Buckets, Roots, Rules, plain},
};

/// Entry for a worker's defaults.
const AUTO: &str = "auto";
/// Entry for all hubs or buckets.
const ALL: &str = "*";
/// Folder of models that all jobs may use.
const MODELS: &str = "/srv/ringtune/models";

/// `[access]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccessSettings {
    /// The folders below which jobs may name models and tokenizers by path; `auto` beyond loopback: `/srv/ringtune/models`
    /// and the model cache.
    ///
    /// Allowed: a list of absolute paths, `/` for everything, and `auto`; empty for nothing.
    pub model_roots: Vec<String>,
    /// The folders below which jobs may name folders of pictures or of tokens by path; `auto` beyond loopback: none.
    ///
    /// Allowed: a list of absolute paths, `/` for everything, and `auto`; empty for nothing.
    pub data_roots: Vec<String>,
    /// The folders below which jobs may name learned embeddings and LoRAs by path; `auto` beyond loopback: none.
    ///
    /// Allowed: a list of absolute paths, `/` for everything, and `auto`; empty for nothing.
    pub embedding_roots: Vec<String>,
    /// The folders below which jobs may write traces where `debug.allow_trace_dir` lets them; `auto` beyond loopback: none.
    ///
    /// Allowed: a list of absolute paths, `/` for everything, and `auto`; empty for nothing.
    pub trace_roots: Vec<String>,
    /// The hubs from which jobs may have models and pictures fetched; `auto` beyond loopback: none.
    ///
    /// Allowed: a list of `HOST`, `HOST:PORT` or URLs, `*` for whichever `HF_ENDPOINT` names, and `auto`; empty for
    /// nothing.
    pub hubs: Vec<String>,
    /// The buckets from which jobs may have models, tokens and pictures fetched; `auto` beyond loopback: none.
    ///
    /// Allowed: a list of `s3://BUCKET` or `s3://BUCKET/PREFIX`, `*` for all that the credentials open, and `auto`; empty
    /// for nothing.
    pub buckets: Vec<String>,
    /// The buckets into which jobs may have their files put (`[output] url`); `auto` beyond loopback: none.
    ///
    /// Allowed: a list of `s3://BUCKET` or `s3://BUCKET/PREFIX`, `*` for all that the credentials open, and `auto`; empty
    /// for nothing.
    pub output_buckets: Vec<String>,
}

impl Default for AccessSettings {
    fn default() -> Self {
        let auto = || vec![AUTO.to_owned()];
        Self {
            model_roots: auto(),
            data_roots: auto(),
            embedding_roots: auto(),
            trace_roots: auto(),
            hubs: auto(),
            buckets: auto(),
            output_buckets: auto(),
        }
    }
}

impl AccessSettings {
    /// Entries that would allow nothing, or something else than they seem to: the first of each setting.
    pub fn problems(&self) -> Vec<SettingsError> {
        let mut problems = Vec::new();
        let wrong = |entries: &[String], is_right: &dyn Fn(&str) -> bool| {
            entries.iter().find(|entry| *entry != AUTO && !is_right(entry)).cloned()
        };
        for (key, entries) in [
            ("access.model_roots", &self.model_roots),
            ("access.data_roots", &self.data_roots),
            ("access.embedding_roots", &self.embedding_roots),
            ("access.trace_roots", &self.trace_roots),
        ] {
            if let Some(given) = wrong(entries, &|entry| plain(Path::new(entry)).is_some()) {
                let allowed = "an entry is an absolute path without .., / for everything, or auto";
                problems.push(SettingsError::text(key, &given, allowed));
            }
        }
        if let Some(given) = wrong(&self.hubs, &|entry| entry == ALL || Hub::parse(entry).is_some()) {
            let allowed = "an entry is HOST, HOST:PORT, https://HOST, * for everything, or auto";
            problems.push(SettingsError::text("access.hubs", &given, allowed));
        }
        for (key, entries) in
            [("access.buckets", &self.buckets), ("access.output_buckets", &self.output_buckets)]
        {
            if let Some(given) = wrong(entries, &|entry| entry == ALL || bucket(entry).is_some()) {
                let allowed = "an entry is s3://BUCKET, s3://BUCKET/PREFIX, * for everything, or auto";
                problems.push(SettingsError::text(key, &given, allowed));
            }
        }
        problems
    }

    /// The rules of these settings. `exposed`: the worker listens beyond loopback, so that its jobs may be others' than its own user's.
    pub fn rules(&self, exposed: bool, model_cache: &Path) -> Rules {
        let roots = |entries: &[String], own: &[PathBuf]| {
            let folders = entries.iter().flat_map(|entry| match entry.as_str() {
                AUTO if exposed => own.to_vec(),
                AUTO => vec![PathBuf::from("/")],
                folder => vec![PathBuf::from(folder)],
            });
            Roots::of(folders)
        };
        let is_all =
            |entries: &[String]| entries.iter().any(|entry| entry == ALL || (entry == AUTO && !exposed));
        let buckets = |entries: &[String]| match is_all(entries) {
            true => Buckets::Everything,
            false => Buckets::Within(entries.iter().filter_map(|entry| bucket(entry)).collect()),
        };
        Rules {
            models: roots(&self.model_roots, &[PathBuf::from(MODELS), model_cache.to_owned()]),
            data: roots(&self.data_roots, &[]),
            embeddings: roots(&self.embedding_roots, &[]),
            traces: roots(&self.trace_roots, &[]),
            hubs: match is_all(&self.hubs) {
                true => Hubs::Everything,
                false => Hubs::Of(
                    self.hubs.iter().filter(|hub| *hub != AUTO).filter_map(|hub| Hub::parse(hub)).collect(),
                ),
            },
            buckets: buckets(&self.buckets),
            outputs: buckets(&self.output_buckets),
        }
    }
}

fn bucket(entry: &str) -> Option<S3Model> {
    match ModelLocation::parse(entry, "") {
        Ok(ModelLocation::S3(bucket)) => Some(bucket),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_key(change: impl FnOnce(&mut AccessSettings)) -> &'static str {
        let mut settings = AccessSettings::default();
        change(&mut settings);
        settings.problems().first().map_or("none", |error| error.key())
    }

    fn list(entries: &[&str]) -> Vec<String> {
        entries.iter().map(|entry| (*entry).to_owned()).collect()
    }

    #[test]
    fn entries_that_mean_nothing_are_refused_by_name() {
        for good in [&["/a", "auto"][..], &[], &["/"]] {
            assert_eq!(error_key(|s| s.data_roots = list(good)), "none");
        }
        for wrong in ["", "a", "./a", "*", "/a/../b", "~/a"] {
            assert_eq!(error_key(|s| s.model_roots = list(&[wrong])), "access.model_roots", "{wrong}");
            assert_eq!(error_key(|s| s.trace_roots = list(&["/a", wrong])), "access.trace_roots", "{wrong}");
        }
        assert_eq!(error_key(|s| s.hubs = list(&["*", "huggingface.co", "http://10.0.0.1:80"])), "none");
        assert_eq!(error_key(|s| s.hubs = list(&["/"])), "access.hubs");
        assert_eq!(error_key(|s| s.buckets = list(&["*", "s3://models", "s3://models/sd"])), "none");
        for wrong in ["models", "s3://", "s3://models/*", "hf://a/b", "/"] {
            assert_eq!(error_key(|s| s.buckets = list(&[wrong])), "access.buckets", "{wrong}");
            assert_eq!(error_key(|s| s.output_buckets = list(&[wrong])), "access.output_buckets", "{wrong}");
        }
    }

    #[test]
    fn a_worker_of_one_machine_reaches_everything_and_one_of_a_network_little() {
        let settings = AccessSettings::default();
        assert_eq!(settings.rules(false, Path::new("/c")), Rules::everything());
        let none = || Roots::Below(Vec::new());
        let exposed = Rules {
            models: Roots::Below(vec![MODELS.into(), "/c".into()]),
            data: none(),
            embeddings: none(),
            traces: none(),
            hubs: Hubs::Of(Vec::new()),
            buckets: Buckets::Within(Vec::new()),
            outputs: Buckets::Within(Vec::new()),
        };
        assert_eq!(settings.rules(true, Path::new("/c")), exposed);
    }

    #[test]
    fn an_empty_list_is_nothing_and_everything_is_said_by_its_own_word() {
        let settings = AccessSettings {
            model_roots: Vec::new(),
            hubs: Vec::new(),
            buckets: list(&["*"]),
            data_roots: list(&["auto", "/data", "/"]),
            trace_roots: list(&["auto", "/traces"]),
            ..AccessSettings::default()
        };
        for exposed in [false, true] {
            let rules = settings.rules(exposed, Path::new("/c"));
            assert_eq!((rules.models, rules.hubs), (Roots::Below(Vec::new()), Hubs::Of(Vec::new())));
            assert_eq!((rules.buckets, rules.data), (Buckets::Everything, Roots::Everything));
            let traces = if exposed { Roots::Below(vec!["/traces".into()]) } else { Roots::Everything };
            assert_eq!(rules.traces, traces);
        }
    }
}
