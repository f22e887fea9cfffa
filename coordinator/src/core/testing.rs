//! What tests give the core.

use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, Epoch, JobId, WorkerId};
use ringtune_shared::job::{JobSpec, parse_job_toml};
use ringtune_shared::version::Dialect;

use super::{ArtifactRecord, Capabilities, Cluster, Hello, NewJob, Options, Recovered, StepRecord, Time};

/// A cluster that knows nobody.
pub(crate) fn cluster() -> Cluster {
    Cluster::recover(Options::default(), Recovered::default(), Time(0))
}

/// The first words of a worker of this build, on a host of its own.
pub(crate) fn hello(number: u64) -> Hello {
    Hello {
        worker: WorkerId::new(),
        incarnation: 1,
        host_name: format!("host-{number}"),
        address: format!("127.0.0.1:{number}"),
        capabilities: Arc::new(Capabilities { threads: 1, ..Capabilities::default() }),
        held: Vec::new(),
        dialect: Dialect::ours(),
    }
}

/// A textual inversion with more lines in `[train]`, and sections after it.
pub(crate) fn inversion(more: &str) -> Arc<JobSpec> {
    let spec = parse_job_toml(&format!(
        "kind = \"textual_inversion\"\n[model]\nbase = \"/models/sd\"\n[data]\nimages = \"/images\"\n\
         [train]\nplaceholder_token = \"<star>\"\ninitializer_token = \"star\"\n{more}"
    ));
    Arc::new(spec.unwrap())
}

/// A job of nobody.
pub(crate) fn new_job(id: JobId, spec: Arc<JobSpec>) -> NewJob {
    NewJob { id, spec, queue: Arc::default(), request: None, resumed: None, trace: None, sweep: None }
}

/// A step of one rank in the first ring, which took no time.
pub(crate) fn step_record(step: u64) -> StepRecord {
    StepRecord { step, loss: 0.5, learning_rate: 0.1, world_size: 1, ..StepRecord::default() }
}

/// A file that a job keeps.
pub(crate) fn file(job: JobId, name: &str, content: &[u8], epoch: Option<u64>) -> ArtifactRecord {
    ArtifactRecord {
        job,
        name: name.to_owned(),
        hash: ContentHash::of(content),
        size: content.len() as u64,
        media_type: String::new(),
        created: Time(0),
        epoch: epoch.map(Epoch),
    }
}
