//! A rank that trains adapters.

use ringtune_fake_engine::FakeScript;
use ringtune_proto::v1::RankPhase;
use ringtune_shared::job::{JobSpec, parse_job_toml};

use crate::{
    coordinator::Coordinator,
    rings::{begin, ring},
    support::{fixture, pictures},
};

/// Seven steps on three pictures that have one prompt.
fn job(coordinator: &Coordinator, world_size: u32) -> JobSpec {
    let pictures = pictures(3);
    let borrowed: Vec<(&str, Vec<u8>)> =
        pictures.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let images = coordinator.add_images(&borrowed);
    parse_job_toml(&format!(
        "kind = \"lora\"\nname = \"a test\"\n[model]\nbase = \"{}\"\n\
         [data]\nimages = \"{images}\"\ninstance_prompt = \"a thing\"\n\
         [train]\nresolution = 16\ntrain_batch_size = 2\nmax_train_steps = 7\nlearning_rate = 0.01\nsave_steps = 3\n\
         checkpointing_steps = 4\nvalidation_loss_steps = 2\nselect_best = true\n\
         [lora]\nrank = 2\nalpha = 1\n[cluster]\nworld_size = {world_size}\nmin_world_size = 1\n",
        fixture("toy-sd").display()
    ))
    .unwrap()
}

/// The names of the files, and the bytes of those that depend on the job alone.
async fn learned(workers: usize) -> (Vec<String>, Vec<u8>) {
    let mut ring = ring(vec![FakeScript::default(); workers]).await;
    let spec = job(&ring.coordinator, 4);
    let id = begin(&mut ring, &spec).await;
    let mut steps = Vec::new();
    for session in &mut ring.sessions {
        steps.extend(session.until(RankPhase::Finished).await.1);
    }
    assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert!(steps.iter().all(|step| step.loss.is_finite() && !step.skipped));
    let names = ring.coordinator.kept_names(id);
    let own = |name: &&String| name.ends_with(".safetensors") || name.as_str() == "README.md";
    let bytes = names.iter().filter(own).flat_map(|name| ring.coordinator.kept(id, name).unwrap()).collect();
    for worker in ring.workers {
        worker.end().await.unwrap();
    }
    (names, bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_and_three_learn_the_same_adapters() {
    let (names, alone) = learned(1).await;
    assert_eq!(
        names,
        [
            "README.md",
            "a_test.safetensors",
            "checkpoint-4.safetensors",
            "events.out.tfevents.ringtune",
            "job.log",
            "job.toml",
            "metrics.csv",
            "pytorch_lora_weights-last.safetensors",
            "pytorch_lora_weights-steps-3.safetensors",
            "pytorch_lora_weights-steps-6.safetensors",
            "pytorch_lora_weights.safetensors",
        ]
    );
    assert_eq!(learned(3).await, (names, alone));
}
