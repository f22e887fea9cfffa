use std::{fs, time::Duration};

use ringtune_fake_engine::{FakeEngine, FakeScript};
use ringtune_shared::{
    ids::{Epoch, JobId},
    job::parse_job_toml,
};
use ringtune_sources::{CacheOptions, Environment, Patience};
use tokio::{sync::mpsc, time::timeout};

use super::*;
use crate::{access::Rules, session::RankKey};

/// A minute or more to hash, in a file that takes no room on the disk.
const LARGE: u64 = 64 << 30;

#[tokio::test]
async fn a_model_that_nobody_waits_for_any_more_is_not_hashed_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    for part in ["unet", "tokenizer"] {
        fs::create_dir_all(model.join(part)).unwrap();
    }
    for file in ["model_index.json", "unet/config.json", "tokenizer/vocab.json"] {
        fs::write(model.join(file), "{}").unwrap();
    }
    fs::write(model.join("tokenizer/merges.txt"), "").unwrap();
    let weights = fs::File::create(model.join("unet/diffusion_pytorch_model.safetensors")).unwrap();
    weights.set_len(LARGE).unwrap();
    let job = format!(
        "kind = \"textual_inversion\"\n[model]\nbase = \"{}\"\n[data]\nimages = \"/i\"\n\
         [train]\nplaceholder_token = \"<x>\"\ninitializer_token = \"star\"\n",
        model.display()
    );
    let spec = parse_job_toml(&job).unwrap();
    let cache = CacheOptions { folder: folder.path().join("cache"), most_bytes: 1 << 20 };
    let patience = Patience { stall: Duration::from_secs(1), tries: 1, first_wait: Duration::from_millis(1) };
    let (events, _said) = mpsc::channel(64);
    let fingerprints = Arc::new(Fingerprints::default());
    let loading = Loading {
        spec: &spec,
        training: None,
        fits: None,
        rescale_zero_snr: false,
        precision: Precision::Fp32,
        threads: 1,
        engine: &EngineHandle::start(|| Ok(FakeEngine::new(FakeScript::default()))).unwrap(),
        access: &Access::new(Rules::everything(), "", folder.path().join("views")),
        sources: &ModelSources::new(Environment::default(), cache, patience),
        fingerprints: &fingerprints,
        journal: &Journal::new(RankKey { job: JobId::new(), epoch: Epoch::FIRST }, Some(0), events),
    };
    let loaded = loading.run().await.unwrap();
    assert_eq!(Arc::strong_count(&fingerprints), 2);
    drop(loaded);
    let given_up = async {
        while Arc::strong_count(&fingerprints) > 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), given_up).await.expect("it is still hashed");
}
