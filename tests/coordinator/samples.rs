//! A small job, and the first words of a worker.

use ringtune_proto::v1;
use ringtune_shared::{
    ids::WorkerId,
    version::{VERSION, WORKER_PROTOCOLS},
};

/// Steps of every job here.
pub(crate) const STEPS: i64 = 5;

pub(crate) fn spec(world_size: i64) -> v1::JobSpec {
    v1::JobSpec {
        kind: "textual_inversion".to_owned(),
        name: "a job".to_owned(),
        model: Some(v1::ModelSpec { base: "/models/sd".to_owned(), ..Default::default() }),
        data: Some(v1::DataSpec { images: "/images".to_owned(), ..Default::default() }),
        train: Some(v1::TrainSpec {
            placeholder_token: "<star>".to_owned(),
            initializer_token: "star".to_owned(),
            max_train_steps: Some(STEPS),
            ..v1::TrainSpec::default()
        }),
        cluster: Some(v1::ClusterSpec { world_size: Some(world_size), ..v1::ClusterSpec::default() }),
        ..v1::JobSpec::default()
    }
}

pub(crate) fn hello(host: &str) -> v1::Hello {
    v1::Hello {
        worker_id: WorkerId::new().to_string(),
        incarnation: 1,
        host_name: host.to_owned(),
        address: format!("{host}:7080"),
        capabilities: Some(v1::Capabilities {
            version: VERSION.to_owned(),
            numerics_class: "one".to_owned(),
            threads: 2,
            ..v1::Capabilities::default()
        }),
        held: Vec::new(),
        protocol_max: WORKER_PROTOCOLS.max,
        protocol_min: WORKER_PROTOCOLS.min,
        features: Vec::new(),
        labels: std::collections::BTreeMap::new(),
    }
}
