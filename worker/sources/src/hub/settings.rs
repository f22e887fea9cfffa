//! Address, cache and token of the hub: the variables of Python's huggingface_hub, with their meaning there.

use std::{fmt, path::PathBuf};

use reqwest::Url;

use crate::{Environment, Error};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Maximal length of a token; the hub's have 37 characters.
const LONGEST_TOKEN: usize = 1000;

/// Settings of the variables.
#[derive(Clone, Debug)]
pub(crate) struct HubSettings {
    /// Without a slash at its end.
    pub(crate) endpoint: Url,
    /// The folder of `models--ORG--NAME`.
    pub(crate) cache: PathBuf,
    pub(crate) token: Option<Token>,
    /// Nothing may be asked.
    pub(crate) offline: bool,
}

/// A secret: it is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl Token {
    /// For the Authorization header.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

impl HubSettings {
    /// Reads the variables, and the file with the token. Blocks on that.
    pub(crate) fn of(environment: &Environment) -> Result<Self, Error> {
        let home = environment
            .folder(&["HF_HOME"])
            .or_else(|| environment.cache_home().map(|cache| cache.join("huggingface")));
        let cache = environment
            .folder(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
            .or_else(|| home.as_ref().map(|home| home.join("hub")))
            .ok_or_else(|| Error::Variable {
                variable: "HF_HOME",
                problem: "not set, and there is no HOME: say where the cache of hf:// models is".to_owned(),
            })?;
        Ok(Self {
            endpoint: endpoint(environment.get("HF_ENDPOINT"))?,
            cache,
            token: token(environment, home)?,
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
                .iter()
                .any(|name| environment.get(name).is_some_and(is_true)),
        })
    }
}

/// See [`crate::hub_endpoint`].
pub(crate) fn endpoint_of(environment: &Environment) -> Result<String, Error> {
    let url = endpoint(environment.get("HF_ENDPOINT"))?;
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// Source: huggingface_hub's constants.py.
fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str())
}

fn endpoint(given: Option<&str>) -> Result<Url, Error> {
    let wrong = |problem: &str| Error::Variable { variable: "HF_ENDPOINT", problem: problem.to_owned() };
    let text = given.unwrap_or(DEFAULT_ENDPOINT).trim_end_matches('/');
    let url = Url::parse(text).map_err(|_| wrong("not a URL; allowed: https://HOST or http://HOST:PORT"))?;
    let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() || !plain {
        return Err(wrong("allowed: https://HOST or http://HOST:PORT, without a user or a query"));
    }
    Ok(url)
}

fn token(environment: &Environment, home: Option<PathBuf>) -> Result<Option<Token>, Error> {
    let (variable, text) = match environment.first(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]) {
        Some(text) => ("HF_TOKEN", text.to_owned()),
        None => {
            let Some(file) =
                environment.folder(&["HF_TOKEN_PATH"]).or_else(|| home.map(|home| home.join("token")))
            else {
                return Ok(None);
            };
            match std::fs::read_to_string(&file) {
                Ok(text) => ("HF_TOKEN_PATH", text.trim().to_owned()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(Error::io(file)(error)),
            }
        }
    };
    if text.is_empty() {
        return Ok(None);
    }
    if text.len() > LONGEST_TOKEN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let problem = "holds no token: a token is one word of ASCII letters".to_owned();
        return Err(Error::Variable { variable, problem });
    }
    Ok(Some(Token(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<HubSettings, Error> {
        let pairs = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        HubSettings::of(&pairs.collect())
    }

    #[test]
    fn the_cache_is_where_huggingface_hub_has_it() {
        let cache = |variables: &[(&str, &str)]| settings(variables).unwrap().cache.display().to_string();
        assert_eq!(cache(&[("HOME", "/h")]), "/h/.cache/huggingface/hub");
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), "/x/huggingface/hub");
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "~/hf")]), "/h/hf/hub");
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/hub")]), "/hub");
        assert!(matches!(settings(&[]), Err(Error::Variable { variable: "HF_HOME", .. })));
    }

    #[test]
    fn words_for_yes_are_huggingface_hubs() {
        let offline = |value: &str| settings(&[("HOME", "/h"), ("HF_HUB_OFFLINE", value)]).unwrap().offline;
        assert!(["1", "true", "Yes", "ON"].into_iter().all(offline));
        assert!(!["0", "", "false", "no"].into_iter().any(offline));
    }

    #[test]
    fn endpoints_are_checked() {
        let endpoint = |value: &str| settings(&[("HOME", "/h"), ("HF_ENDPOINT", value)]);
        assert_eq!(endpoint("http://127.0.0.1:99/").unwrap().endpoint.as_str(), "http://127.0.0.1:99/");
        for wrong in ["hub", "ftp://x", "https://user:secret@x", "https://"] {
            let error = endpoint(wrong).unwrap_err();
            assert!(matches!(error, Error::Variable { variable: "HF_ENDPOINT", .. }), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn tokens_come_from_the_variable_or_the_file_and_are_never_shown() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().to_str().unwrap();
        std::fs::write(home.path().join("token"), "hf_from_file\n").unwrap();
        let from_file = settings(&[("HF_HOME", folder)]).unwrap();
        assert_eq!(from_file.token.as_ref().unwrap().secret(), "hf_from_file");
        let from_variable = settings(&[("HF_HOME", folder), ("HF_TOKEN", " hf_variable ")]).unwrap();
        assert_eq!(from_variable.token.as_ref().unwrap().secret(), "hf_variable");
        assert!(!format!("{from_variable:?}").contains("hf_variable"));
        let wrong = settings(&[("HF_HOME", folder), ("HF_TOKEN", "two words")]).unwrap_err();
        assert!(!wrong.to_string().contains("two words"), "{wrong}");
        assert_eq!(settings(&[("HF_HOME", "/nowhere")]).unwrap().token, None);
    }
}
