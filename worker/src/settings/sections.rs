//! The sections of the settings, with their defaults.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use ringtune_shared::daemon::settings::SettingsError;
use ringtune_sources::{CacheOptions, Environment, default_cache_folder};
use serde::{Deserialize, Serialize};

use crate::{
    cloud::{CloudProvider, METADATA},
    engine::InstructionSet,
    node::Share,
    state_folder,
};

/// `[coordinator]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoordinatorSettings {
    /// The address of the coordinator's gRPC port, with TLS (`https`) or without (`http`); what names neither is `http` for
    /// this machine itself, and `https` for all others.
    ///
    /// Allowed: `https://HOST:PORT`, `http://HOST:PORT` or `HOST:PORT`; without a port it is 7070.
    pub url: String,
}

/// To one neighbour; the ring opens no more.
pub(crate) const MOST_RING_CONNECTIONS: usize = 8;

/// `[ring]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RingSettings {
    /// The address that ring neighbours dial; empty: the local address of the route to the coordinator.
    ///
    /// Allowed: empty, or `HOST` or `HOST:PORT` where `ring.interface` is empty.
    pub advertise_address: String,
    /// The network interface whose address ring neighbours dial; empty: no particular one.
    ///
    /// Allowed: empty, or a name where `ring.advertise_address` is empty.
    pub interface: String,
    /// How long a ring neighbour may give no sign of life; half a second later it counts as lost.
    ///
    /// Allowed: 0.1 to 86400.
    pub peer_timeout_seconds: f64,
    /// Lets ring neighbours on the same machine, of the same user, reach each other through Unix sockets in their state folders,
    /// which takes no more of the processors than TCP, and half of what TLS takes.
    pub local_sockets: bool,
    /// Where local_sockets is on: what is large lies in memory that both neighbours share, which takes three fifths of what TCP takes of the
    /// processors.
    pub shared_memory: bool,
    /// Connections to a ring neighbour on another machine; 0: where steps bring 16 MiB or more to the ring, the ring measures,
    /// when it forms, how many connections are worthwhile, as several are where the network gives each a share of the link.
    ///
    /// Allowed: 0 to 8.
    pub connections: usize,
}

/// 2,000 pictures of 512 pixels.
pub(crate) const LATENT_MEMORY_BYTES: u64 = 512 << 20;

/// `[storage]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageSettings {
    /// The folder in which the worker keeps its identity, its caches and its work files; one worker per folder.
    ///
    /// Allowed: a folder.
    pub state_dir: PathBuf,
    /// How much the cache of files fetched from the coordinator may take.
    ///
    /// Allowed: 0 or more.
    pub cache_bytes: u64,
    /// How much the cache of encoded pictures may take, at 256 KiB for a picture of 512 pixels; 0: nothing is kept.
    ///
    /// Allowed: 0 or more.
    pub latent_cache_bytes: u64,
    /// How much a job's encoded pictures may take in memory, counted in the same way; the others are read from the disk
    /// whenever they are shown.
    ///
    /// Allowed: 0 or more.
    pub latent_memory_bytes: u64,
}

/// `[model_cache]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelCacheSettings {
    /// The cache's folder, which all workers of a machine can share; empty: `$XDG_CACHE_HOME/ringtune/models`, or
    /// `~/.cache/ringtune/models`, or `models` in the state folder where there is no home.
    ///
    /// Allowed: empty, or an absolute path.
    pub dir: PathBuf,
    /// How much the cache may take; what was used longest ago is removed first, and nothing that is in use.
    ///
    /// Allowed: 0 or more.
    pub max_bytes: u64,
}

/// `[compute]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeSettings {
    /// How many threads a rank gets when its job leaves it open; 0: one for each physical core of its share.
    ///
    /// Allowed: 0 to 4096.
    pub threads: usize,
    /// Which of several equal parts of the cores that it may use the worker computes on, where several workers are on one
    /// machine; `1/1`: all of them.
    ///
    /// Allowed: `NUMBER/OF`, such as `1/2` for the first of two workers, with at most 256 parts.
    pub share: String,
    /// The best instructions that the worker and libtorch use, to test or time what lesser machines do; `auto`: whatever the
    /// processor has; below `avx512_bf16` there is no bf16.
    ///
    /// Allowed: `auto`, `portable`, `avx2`, `avx512`, `avx512_bf16` or `amx`; none that the processor has not.
    pub instruction_set: InstructionSet,
}

impl Default for ComputeSettings {
    fn default() -> Self {
        Self { threads: 0, share: Share::WHOLE.to_string(), instruction_set: InstructionSet::Auto }
    }
}

impl ComputeSettings {
    /// The worker's part of the cores; all of them where the setting cannot be read, which [`Settings::problems`] tells.
    pub fn share(&self) -> Share {
        self.share.parse().unwrap_or(Share::WHOLE)
    }
}

/// `[training]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingSettings {
    /// How often a job's state is kept at the coordinator until the job ends, whether or not it makes checkpoints; if all
    /// its workers are lost, it goes on from there; 0: never.
    ///
    /// Allowed: 0, or 0.01 to 86400.
    pub recovery_checkpoint_seconds: f64,
}

/// `shutdown.grace_seconds`, unless it is given.
pub const END_LIMIT: Duration = Duration::from_secs(30);
/// A year.
pub(crate) const MOST_IDLE_SECONDS: u64 = 31_536_000;
/// Least and most of `shutdown.grace_seconds`.
pub(super) const GRACE_SECONDS: RangeInclusive<u64> = 15..=86_400;

/// `[worker]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerSettings {
    /// Labels of the worker, as in `["pool=blue", "rack=r1"]`: jobs ask for them by `cluster.constraints`, and are packed or spread by
    /// them (`cluster.topology`).
    ///
    /// Allowed: at most 32, each a key of 1 to 63 of a-z, 0-9 and . _ / - with a value of at most 63 printable characters.
    pub labels: Vec<String>,
}

impl WorkerSettings {
    /// The labels by their keys; of two of one key the last.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let label =
            |text: &String| text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.labels.iter().filter_map(label).collect()
    }
}

/// `[shutdown]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShutdownSettings {
    /// How long the worker may take to end once it is asked to (SIGTERM, SIGUSR1, Ctrl-C), in which its ring takes the step that it
    /// is at to the end, or what it has is uploaded; whoever kills it afterwards has to wait 15 seconds longer.
    ///
    /// Allowed: 15 to 86400.
    pub grace_seconds: u64,
    /// After how long without a rank the worker ends by itself, so that whoever lent it the machine has it back; 0: never.
    ///
    /// Allowed: 0 to 31536000.
    pub idle_seconds: u64,
    /// The exit code of a worker that was asked to end and did so in peace; another one than 0 for whoever takes 0 as a sign that no
    /// worker is needed any more, as a Job of Kubernetes does.
    ///
    /// Allowed: 0 or 4 to 255.
    pub exit_code: u8,
}

/// `[cloud]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CloudSettings {
    /// Whose machine it is: that cloud's metadata service is asked every 5 seconds whether it takes the machine away, and then the worker leaves
    /// as after a SIGTERM; on EC2 buckets are opened with the machine's role, where no AWS_… variable has credentials.
    ///
    /// Allowed: `none`, `aws` or `azure`.
    pub provider: CloudProvider,
    /// Where the metadata service is; empty: where both clouds have it.
    ///
    /// Allowed: empty, or `http://HOST:PORT` together with `cloud.provider`.
    pub endpoint: String,
}

impl CloudSettings {
    /// `http://HOST[:PORT]` of the metadata service.
    pub(crate) fn endpoint(&self) -> &str {
        if self.endpoint.is_empty() { METADATA } else { &self.endpoint }
    }

    /// What is wrong with it.
    pub(crate) fn problem(&self) -> Option<SettingsError> {
        let host = self.endpoint.strip_prefix("http://");
        let is_address = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '@', '?', ' ']));
        let is_right = self.endpoint.is_empty() || (is_address && self.provider != CloudProvider::None);
        let allowed = "it must be empty, or http://HOST:PORT together with cloud.provider";
        (!is_right).then(|| SettingsError::text("cloud.endpoint", &self.endpoint, allowed))
    }

    /// This process's variables that say where models are and who asks, and the role of the machine where it has one.
    pub(crate) fn environment(&self) -> Environment {
        let environment = Environment::of_process();
        match self.provider {
            CloudProvider::Aws => environment.with_role_of_machine(self.endpoint()),
            CloudProvider::Azure | CloudProvider::None => environment,
        }
    }
}

/// `[debug]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DebugSettings {
    /// Lets jobs write traces into their `debug.trace_dir` on this machine; otherwise such a job is refused.
    pub allow_trace_dir: bool,
}

impl Default for CoordinatorSettings {
    fn default() -> Self {
        Self { url: "http://127.0.0.1:7070".to_owned() }
    }
}

impl Default for RingSettings {
    fn default() -> Self {
        Self {
            advertise_address: String::new(),
            interface: String::new(),
            peer_timeout_seconds: 2.0,
            local_sockets: true,
            shared_memory: true,
            connections: 0,
        }
    }
}

impl Default for StorageSettings {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/ringtune-worker"),
            cache_bytes: 8 << 30,
            latent_cache_bytes: 4 << 30,
            latent_memory_bytes: LATENT_MEMORY_BYTES,
        }
    }
}

impl Default for TrainingSettings {
    fn default() -> Self {
        Self { recovery_checkpoint_seconds: 60.0 }
    }
}

impl Default for ShutdownSettings {
    fn default() -> Self {
        Self { grace_seconds: END_LIMIT.as_secs(), idle_seconds: 0, exit_code: 0 }
    }
}

impl Default for ModelCacheSettings {
    fn default() -> Self {
        Self { dir: PathBuf::new(), max_bytes: 64 << 30 }
    }
}

impl ModelCacheSettings {
    /// Fills what the variables leave open; `fallback` is used without a home folder.
    pub fn options(&self, environment: &Environment, fallback: &Path) -> CacheOptions {
        let folder = match self.dir.as_os_str().is_empty() {
            false => self.dir.clone(),
            true => default_cache_folder(environment).unwrap_or_else(|| fallback.join(state_folder::MODELS)),
        };
        CacheOptions { folder, most_bytes: self.max_bytes }
    }
}
