//! The same with libtorch, on the toy checkpoint.

use ringtune_proto::v1::RankPhase;
use ringtune_shared::{daemon::lifecycle::Shutdown, ids::JobId};
use ringtune_worker::{
    daemon::{Launch, run_with},
    engine::{EngineHandle, TorchEngine},
};
use safetensors::SafeTensors;
use tokio::time::timeout;

use crate::{
    coordinator::{Coordinator, Rank},
    worker::{LIMIT, fixture, job, settings},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_toy_checkpoint_trains() {
    timeout(LIMIT, async {
        let mut coordinator = Coordinator::start().await;
        let state = tempfile::tempdir().unwrap();
        let shutdown = Shutdown::default();
        let running = tokio::spawn(run_with(
            settings(&coordinator, &state),
            Launch::default(),
            shutdown.clone(),
            || EngineHandle::start(|| TorchEngine::new(1)),
        ));
        let mut session = coordinator.accept().await;
        assert_eq!(session.hello.capabilities.as_ref().unwrap().libtorch_version, "2.13.0");
        let mut spec = job(&coordinator, 3, 1);
        spec.train.resolution = 64;
        spec.data.images = fixture("concepts/green-star").display().to_string();
        let members = [session.member()];
        // Twice: the second finds the checkpoint loaded, and learns the same.
        let mut learned = Vec::new();
        for _ in 0..2 {
            let id = JobId::new();
            session.assign(Rank { job: id, epoch: 1, members: &members, rank: 0, spec: &spec }).await;
            session.until(RankPhase::Ready).await;
            session.start(id).await;
            let (_, steps) = session.until(RankPhase::Finished).await;
            assert!(steps.iter().all(|step| step.loss > 0.0 && step.loss < 10.0), "{steps:?}");
            learned.push(coordinator.kept(id, "learned_embeds.safetensors").unwrap());
            session.stop(id, false).await;
            session.until_free().await;
        }
        assert!(learned[0] == learned[1]);
        let tensors = SafeTensors::deserialize(&learned[0]).unwrap();
        assert_eq!(tensors.tensor("<thing>").unwrap().shape()[0], 2);
        shutdown.soft.cancel();
        running.await.unwrap().unwrap();
    })
    .await
    .unwrap();
}
