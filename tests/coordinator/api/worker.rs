//! A worker without a will: it says what a test wants it to, and holds one rank.

use ringtune_coordinator::settings::Settings;
use ringtune_proto::v1::{
    self, RankPhase, session_request::Message as Up, session_response::Message as Down,
    worker_service_client::WorkerServiceClient,
};
use ringtune_shared::version::VERSION;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

pub(crate) use crate::samples::hello;
use crate::{coordinator::Coordinator, jobs::STEPS, soon};

pub(crate) struct Worker {
    pub(crate) hello: v1::Hello,
    /// The rank that it holds, as in a heartbeat.
    pub(crate) held: v1::HeldRank,
    up: mpsc::Sender<v1::SessionRequest>,
    down: Streaming<v1::SessionResponse>,
}

/// A coordinator on a state folder of its own, and a worker on host-a that trains the only rank of a job.
pub(crate) async fn training(change: impl FnOnce(&mut Settings)) -> (Coordinator, Worker, v1::Job) {
    let coordinator = Coordinator::fresh_with(change).await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let job = Box::pin(coordinator.create(1)).await;
    worker.prepare().await;
    (coordinator, worker, job)
}

/// All of a job's ranks prepare, and train.
pub(crate) async fn all_train(workers: &mut [Worker]) {
    for worker in &mut *workers {
        worker.take_rank().await;
        worker.report(RankPhase::Ready, "").await;
    }
    for worker in workers {
        worker.train().await;
    }
}

impl Worker {
    /// Two new workers, of different hosts.
    pub(crate) async fn pair(coordinator: &Coordinator) -> [Self; 2] {
        [Self::start(coordinator, "host-a").await, Self::start(coordinator, "host-b").await]
    }

    /// A new worker that was welcomed.
    pub(crate) async fn start(coordinator: &Coordinator, host: &str) -> Self {
        Self::open(coordinator, hello(host)).await.unwrap()
    }

    pub(crate) async fn open(coordinator: &Coordinator, hello: v1::Hello) -> Result<Self, Status> {
        Self::open_on(coordinator.channel.clone(), hello).await
    }

    /// Over a connection of its own.
    pub(crate) async fn open_on(channel: Channel, hello: v1::Hello) -> Result<Self, Status> {
        let (up, words) = mpsc::channel(64);
        up.send(v1::SessionRequest { message: Some(Up::Hello(hello.clone())) }).await.unwrap();
        let mut workers = WorkerServiceClient::new(channel);
        let down = soon("a session", workers.session(ReceiverStream::new(words))).await?.into_inner();
        let held = hello.held.first().cloned().unwrap_or_default();
        let mut worker = Self { hello, held, up, down };
        match worker.hear().await? {
            Down::Welcome(welcome) => assert_eq!(welcome.coordinator_version, VERSION),
            other => panic!("the first word was {other:?}"),
        }
        Ok(worker)
    }

    /// Over streams that a test opened by itself, and that were welcomed.
    pub(crate) fn over(
        hello: v1::Hello,
        up: mpsc::Sender<v1::SessionRequest>,
        down: Streaming<v1::SessionResponse>,
    ) -> Self {
        Self { hello, held: v1::HeldRank::default(), up, down }
    }

    /// For those who say more than a test can wait for.
    pub(crate) fn up(&self) -> mpsc::Sender<v1::SessionRequest> {
        self.up.clone()
    }

    /// The connection breaks.
    pub(crate) fn hang_up(self) -> (v1::Hello, v1::HeldRank) {
        (self.hello, self.held)
    }

    /// Reconnects with its rank, to this coordinator or the next.
    pub(crate) async fn come_back(coordinator: &Coordinator, gone: (v1::Hello, v1::HeldRank)) -> Self {
        let (hello, held) = gone;
        Self::open(coordinator, v1::Hello { held: vec![held], ..hello }).await.unwrap()
    }

    pub(crate) async fn hear(&mut self) -> Result<Down, Status> {
        let heard = soon("the coordinator's word", self.down.message()).await?;
        Ok(heard.expect("the session ended").message.unwrap())
    }

    /// The status with which the session ends.
    pub(crate) async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.hear().await {
                return status;
            }
        }
    }

    pub(crate) async fn say(&self, message: Up) {
        self.up.send(v1::SessionRequest { message: Some(message) }).await.unwrap();
    }

    /// Takes the rank that it is given next.
    pub(crate) async fn take_rank(&mut self) -> v1::Assignment {
        let Down::Assignment(assignment) = self.hear().await.unwrap() else { panic!("no assignment") };
        let ring = assignment.ring.clone().unwrap();
        assert_eq!(
            ring.members[assignment.rank as usize].worker_id, self.hello.worker_id,
            "somebody else's rank"
        );
        self.held = v1::HeldRank {
            job_id: ring.job_id,
            epoch: ring.epoch,
            rank: assignment.rank,
            phase: RankPhase::Preparing.into(),
            ..v1::HeldRank::default()
        };
        assignment
    }

    /// Says how far its rank is, in the phase that it is in.
    pub(crate) async fn progress(&self, stage: v1::ProgressStage, done: i64, total: i64) {
        let progress = v1::RankProgress { rank: self.held.rank, stage: stage.into(), done, total };
        let v1::HeldRank { job_id, epoch, rank, phase, .. } = self.held.clone();
        let report =
            v1::RankReport { job_id, epoch, rank, phase, progress: Some(progress), ..Default::default() };
        self.say(Up::RankReport(report)).await;
    }

    pub(crate) async fn report(&mut self, phase: RankPhase, reason: &str) {
        self.held.phase = phase.into();
        self.held.reason = reason.to_owned();
        let v1::HeldRank {
            job_id,
            epoch,
            rank,
            phase,
            step,
            reason,
            neighbour_lost,
            fault,
            trouble,
            leaving,
            blame,
        } = self.held.clone();
        let report = v1::RankReport {
            job_id,
            epoch,
            rank,
            phase,
            progress: None,
            reason,
            neighbour_lost,
            step,
            fault,
            trouble,
            leaving,
            blame,
        };
        self.say(Up::RankReport(report)).await;
    }

    /// From its assignment to the word that training starts.
    pub(crate) async fn prepare(&mut self) {
        self.take_rank().await;
        self.report(RankPhase::Ready, "").await;
        self.train().await;
    }

    /// Waits for the word that training starts.
    pub(crate) async fn train(&mut self) {
        let Down::StartRank(start) = self.hear().await.unwrap() else { panic!("no start") };
        assert_eq!((start.job_id.as_str(), start.epoch), (self.held.job_id.as_str(), self.held.epoch));
        self.report(RankPhase::Training, "").await;
    }

    /// Reports a step and waits until it is stored.
    pub(crate) async fn step(&mut self, step: i64) {
        self.say_step(step).await;
        self.stored(step).await;
    }

    /// As above, with a validation loss.
    pub(crate) async fn validated(&mut self, step: i64, loss: f64) {
        self.say_report(v1::StepReport { validation_loss: Some(loss), ..report_of(step) }).await;
        self.stored(step).await;
    }

    async fn stored(&mut self, step: i64) {
        let Down::StepsStored(stored) = self.hear().await.unwrap() else { panic!("not stored") };
        assert_eq!((stored.job_id.as_str(), stored.step), (self.held.job_id.as_str(), step));
        self.held.step = step;
    }

    pub(crate) async fn say_step(&self, step: i64) {
        self.say_report(report_of(step)).await;
    }

    async fn say_report(&self, report: v1::StepReport) {
        let (job_id, epoch) = (self.held.job_id.clone(), self.held.epoch);
        self.say(Up::RankStep(v1::RankStep { job_id, epoch, step: Some(report) })).await;
    }

    /// The remaining steps, and the end.
    pub(crate) async fn finish(&mut self) {
        for step in self.held.step + 1..=STEPS {
            self.step(step).await;
        }
        self.report(RankPhase::Finished, "").await;
    }

    /// Waits until it is told to let its rank go, or (`keep_artifacts`) to stop; returns the reason.
    pub(crate) async fn stopped(&mut self, keep_artifacts: bool) -> String {
        let Down::StopRank(stop) = self.hear().await.unwrap() else { panic!("not told to stop") };
        assert_eq!((stop.job_id.as_str(), stop.epoch), (self.held.job_id.as_str(), self.held.epoch));
        assert_eq!(stop.keep_artifacts, keep_artifacts);
        stop.reason
    }

    /// Says that it lives, and what it holds.
    pub(crate) async fn heartbeat(&self, held: Vec<v1::HeldRank>) {
        self.say(Up::Heartbeat(v1::Heartbeat { held })).await;
    }
}

fn report_of(step: i64) -> v1::StepReport {
    v1::StepReport {
        step,
        loss: 1.0 / step as f64,
        learning_rate: 1e-4,
        step_seconds: 0.5,
        world_size: 1,
        ..v1::StepReport::default()
    }
}
