//! What a language model is not trained from: each is refused before the first step, by the job's field.

use ringtune_fake_engine::FakeScript;
use ringtune_proto::v1::RankFault;
use ringtune_shared::ids::ContentHash;

use crate::{
    language_models::{Ground, failure, run_alone},
    worker::Alone,
};

const OPTIONS: &str =
    "max_iters = 4\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 0\ncheckpointing_steps = 2\n";

/// Runs a job on this ground that must fail before its first step; its reason has all these words.
async fn refused(alone: &mut Alone, ground: &Ground, options: &str, words: &[&str]) {
    let spec = ground.job(&(OPTIONS.to_owned() + options), 1);
    let (id, report, steps) = failure(alone, &spec).await;
    assert_eq!((report.fault(), steps), (RankFault::Job, 0), "{}", report.reason);
    for word in words {
        assert!(report.reason.contains(word), "{word:?} is missing of {:?}", report.reason);
    }
    assert!(!alone.coordinator.kept_names(id).iter().any(|name| name.ends_with(".safetensors")));
}

/// Puts other bytes in the place of those.
fn replaced(file: &[u8], old: &str, new: &str) -> Vec<u8> {
    let place = file.windows(old.len()).position(|window| window == old.as_bytes()).expect(old);
    [&file[..place], new.as_bytes(), &file[place + old.len()..]].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_of_another_language_model_is_refused() {
    let ground = Ground::lay();
    let (mut alone, id, _) = run_alone(FakeScript::default(), &ground.job(OPTIONS, 1)).await;
    let kept = alone.coordinator.kept(id, "checkpoint-2.safetensors").unwrap();
    let from = |uri: String| format!("resume_from_checkpoint = \"{uri}\"\n");
    let own = from(ContentHash::of(&kept).uri());
    // 1. The job says that its model has another shape.
    let more_layers = own.clone() + "n_layer = 2\n";
    let words = ["checkpoint is of another job", "gpt2.n_layer was 0, now it is 2"];
    refused(&mut alone, &ground, &more_layers, &words).await;
    // 2. The checkpoint says that it is this job's, and has tensors that are not.
    let turned = alone.coordinator.add(replaced(&kept, "\"shape\":[23,4]", "\"shape\":[4,23]"));
    refused(&mut alone, &ground, &from(turned), &["transformer.wte.weight", "[4, 23]", "another model"])
        .await;
    let renamed = alone.coordinator.add(replaced(&kept, "model.transformer.wte", "modem.transformer.wte"));
    refused(&mut alone, &ground, &from(renamed), &["transformer.wte.weight", "another model"]).await;
    // 3. Its numbers are not what its header says.
    let mut damaged = kept.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let damaged = alone.coordinator.add(damaged);
    refused(&mut alone, &ground, &from(damaged), &["not a checkpoint"]).await;
    // 4. The base model, and the tokens, are others by now.
    let shorter = Ground::of_tokens(300, 100);
    refused(&mut alone, &shorter, &own, &["gpt2.tokens has another content"]).await;
    ground.write_config(24);
    refused(&mut alone, &ground, &own, &["model.base has another content"]).await;
    alone.worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_no_language_model_can_be_trained_on_are_refused() {
    let mut alone = Alone::start(FakeScript::default()).await;
    // 1. A window of 8 tokens, and the one that follows them, has no room.
    let words = ["gpt2.tokens", "train.bin", "has 8 tokens; a block of 8 needs at least 9"];
    refused(&mut alone, &Ground::of_tokens(8, 100), "", &words).await;
    // 2. The model does not know all ids.
    let ground = Ground::lay();
    ground.write_config(22);
    refused(&mut alone, &ground, "", &["gpt2.tokens", "train.bin", "is 22; allowed: ids below 22"]).await;
    // 3. They were made with another tokenizer than the model has.
    let ground = Ground::lay();
    ground.add_tokenizer();
    let words = ["gpt2.tokens", "the end-of-text token is 0 by meta.json; allowed: 556, as of model.base"];
    refused(&mut alone, &ground, "", &words).await;
    // 4. They are not what their manifest says.
    let ground = Ground::lay();
    ground.spoil_tokens();
    refused(&mut alone, &ground, "", &["gpt2.tokens", "val.bin"]).await;
    alone.worker.end().await.unwrap();
}
