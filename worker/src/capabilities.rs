//! The worker's capabilities, as the coordinator gets them.

use ringtune_proto::v1;
use ringtune_shared::version::VERSION;

use crate::{
    engine::EngineIdentity,
    node::{Node, Share},
    settings::ComputeSettings,
};

/// The numerics class: workers of one class compute the same bits when they use the same number of threads (which
/// is not part of it: the coordinator fixes one number for all ranks of a job).
///
/// libtorch's version, the processor's model, the instruction set in use, the revision of our own kernels, and, as proof,
/// the hash of a small fixed computation on one thread.
pub fn numerics_class(node: &Node, engine: &EngineIdentity) -> String {
    let model: String = node
        .cpu
        .model
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .filter(|letter| *letter != '/')
        .collect();
    let EngineIdentity { library_version, instruction_set, kernels_revision, probe } = engine;
    format!("libtorch-{library_version}/{model}/{instruction_set}/kernels-{kernels_revision}/{probe}")
}

/// Threads that a rank gets here when its job leaves it open: as configured, or one a physical core of its share.
pub fn default_threads(node: &Node, configured: &ComputeSettings) -> usize {
    match (configured.threads, configured.share()) {
        (0, Share::WHOLE) => node.cpu.physical_cores,
        (0, share) => {
            let paid_for = node.quota.map_or(usize::MAX, |quota| quota / share.of as usize);
            node.cores.portion(share).cores.count().min(paid_for).max(1)
        }
        (threads, _) => threads,
    }
}

/// The message of the hello.
pub fn capabilities(node: &Node, engine: &EngineIdentity, threads: usize) -> v1::Capabilities {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    v1::Capabilities {
        version: VERSION.to_owned(),
        libtorch_version: engine.library_version.clone(),
        cpu_model: node.cpu.model.clone(),
        cpu_flags: node.cpu.flags.clone(),
        cores: number(node.cpu.physical_cores),
        numa_nodes: number(node.numa_nodes),
        memory_bytes: i64::try_from(node.memory_bytes).unwrap_or(i64::MAX),
        numerics_class: numerics_class(node, engine),
        bf16: node.cpu.has_bf16(),
        threads: number(threads),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Cores, Cpu};

    #[test]
    fn workers_that_may_compute_otherwise_are_of_other_classes() {
        let node = |model: &str| Node {
            host_name: "a".to_owned(),
            cpu: Cpu { model: model.to_owned(), flags: Vec::new(), allowed: 2, physical_cores: 2 },
            cores: Cores::default(),
            quota: None,
            memory_bytes: 0,
            numa_nodes: 1,
        };
        let engine = EngineIdentity {
            library_version: "2.13.0".to_owned(),
            instruction_set: "AVX512+amx_bf16".to_owned(),
            kernels_revision: 1,
            probe: "0123456789abcdef".to_owned(),
        };
        let class = numerics_class(&node("Xeon  8480+ / 2"), &engine);
        assert_eq!(class, "libtorch-2.13.0/Xeon 8480+  2/AVX512+amx_bf16/kernels-1/0123456789abcdef");
        // Another number of cores is no other arithmetic.
        let mut larger = node("Xeon  8480+ / 2");
        larger.cpu.allowed = 8;
        assert_eq!(numerics_class(&larger, &engine), class);
        for other in [
            EngineIdentity { library_version: "2.14.0".to_owned(), ..engine.clone() },
            EngineIdentity { instruction_set: "AVX2+avx2".to_owned(), ..engine.clone() },
            EngineIdentity { kernels_revision: 2, ..engine.clone() },
            EngineIdentity { probe: "1123456789abcdef".to_owned(), ..engine.clone() },
        ] {
            assert_ne!(numerics_class(&node("Xeon  8480+ / 2"), &other), class);
        }
        assert_ne!(numerics_class(&node("Xeon 8490"), &engine), class);
    }
}
