//! What an input costs where there are thousands: run it with `--run-ignored all --no-capture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringtune_coordinator::core::{
    Capabilities, Cluster, Effects, HeldRank, Hello, Input, JobState, Options, Phase, RankReport, Recovered,
    Sender, SessionId, Time,
};
use ringtune_shared::ids::{JobId, WorkerId};

use crate::samples::{new_job, spec, step_record};

const WORKERS: u64 = 1000;
const RANKS: i64 = 4;
const QUEUED: usize = 10_000;

/// Each input is applied as the service does it at worst: alone, to a copy of the state, with the look at the queue.
struct Measured {
    cluster: Cluster,
    now: Time,
}

impl Measured {
    fn apply(&mut self, input: Input) -> Effects {
        self.now = self.now.plus(1);
        let mut next = self.cluster.clone();
        let effects = next.apply(input, self.now).unwrap();
        next.place(self.now);
        self.cluster = next;
        effects
    }

    fn create(&mut self) {
        self.apply(Input::CreateJob(new_job(JobId::new(), spec(RANKS, RANKS))));
    }

    /// How long one of `inputs` takes on average.
    #[expect(clippy::print_stdout, reason = "figures for people")]
    fn measure(&mut self, what: &str, inputs: usize, run: impl FnOnce(&mut Self)) {
        let began = Instant::now();
        run(self);
        let each = began.elapsed() / u32::try_from(inputs).unwrap();
        println!("{what}: {} µs each", each.as_nanos() as f64 / 1000.0);
        // Ten times what it takes on a slow machine, and a tenth of what a look at everything takes.
        assert!(each < Duration::from_millis(1), "{what}: {each:?}");
    }
}

#[test]
#[ignore = "measures time: for quiet machines"]
fn an_input_costs_little_among_thousands() {
    let cluster = Cluster::recover(Options::default(), Recovered::default(), Time(0));
    let mut measured = Measured { cluster, now: Time(1) };
    let hellos: Vec<(SessionId, Hello)> =
        (0..WORKERS).map(|number| (SessionId(number), hello(number))).collect();
    measured.measure("hello", hellos.len(), |measured| {
        for (session, hello) in hellos.clone() {
            measured.apply(Input::Hello { session, hello });
        }
    });
    measured.measure("a job that is placed", 250, |measured| (0..250).for_each(|_| measured.create()));
    measured.measure("a job that waits", QUEUED, |measured| (0..QUEUED).for_each(|_| measured.create()));

    let rings: Vec<_> = measured.cluster.jobs().filter_map(|job| Some((job.id, job.ring.clone()?))).collect();
    assert_eq!(rings.len(), 250);
    let sender = |cluster: &Cluster, worker| Sender {
        worker,
        session: cluster.worker(worker).unwrap().session.unwrap(),
    };
    let held = |job, rank: usize, phase, epoch| HeldRank {
        phase,
        ..HeldRank::of(job, epoch, u32::try_from(rank).ok())
    };
    for phase in [Phase::Ready, Phase::Training] {
        measured.measure(&format!("a report of {phase:?}"), 1000, |measured| {
            for (job, ring) in &rings {
                for (rank, member) in ring.members.iter().enumerate() {
                    let held = held(*job, rank, phase, ring.epoch);
                    let sender = sender(&measured.cluster, member.worker);
                    measured.apply(Input::RankReport(sender, RankReport { held, progress: None }));
                }
            }
        });
    }
    assert_eq!(measured.cluster.count_jobs(JobState::Running), 250);
    measured.measure("a heartbeat", 1000, |measured| {
        for (job, ring) in &rings {
            for (rank, member) in ring.members.iter().enumerate() {
                let held = held(*job, rank, Phase::Training, ring.epoch);
                let sender = sender(&measured.cluster, member.worker);
                measured.apply(Input::Heartbeat(sender, vec![held]));
            }
        }
    });
    measured.measure("a step", 1000, |measured| {
        for step in 1..=4 {
            for (job, ring) in &rings {
                let sender = sender(&measured.cluster, ring.members[0].worker);
                measured.apply(Input::RankStep(sender, *job, ring.epoch, step_record(step)));
            }
        }
    });
    measured.measure("a tick", 100, |measured| {
        (0..100).for_each(|_| drop(measured.apply(Input::Tick)));
    });
    let queued: Vec<JobId> =
        measured.cluster.jobs().filter(|job| job.state == JobState::Queued).map(|job| job.id).collect();
    measured.measure("why a job waits", queued.len(), |measured| {
        let waiting = measured.cluster.waiting();
        assert!(queued.iter().all(|job| waiting.reason(*job).is_some()));
    });
    measured.cluster.check_indexes().unwrap();
}

fn hello(number: u64) -> Hello {
    let capabilities = Capabilities {
        version: ringtune_shared::version::VERSION.to_owned(),
        numerics_class: "one".to_owned(),
        threads: 1,
        ..Capabilities::default()
    };
    Hello {
        worker: WorkerId::new(),
        incarnation: 1,
        host_name: format!("host-{number}"),
        address: format!("host-{number}:7080"),
        capabilities: Arc::new(capabilities),
        held: Vec::new(),
        dialect: ringtune_shared::version::Dialect::ours(),
    }
}
