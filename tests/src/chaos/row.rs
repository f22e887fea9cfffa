//! A row of the fault matrix, as data.

use std::ops::Range;

use toml::Value;

use super::{build::Build, proxy::Weather};

/// Target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The worker that has this rank then, or had it when the coordinator last said so.
    Rank(usize),
    /// The worker that was started as number N, from 1; those that join later count on.
    Worker(usize),
    /// The coordinator.
    Coordinator,
}

/// Environment of the daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Loopback, directly.
    Loopback,
    /// Loopback; every worker is dialled by its neighbours, and dials the coordinator, through proxies.
    Proxies,
    /// Every worker in a network namespace of its own.
    Namespaces,
    /// Every daemon with a disk of so many bytes.
    SmallDisks(u64),
    /// As above, with so many bytes kept free by the coordinator.
    LowDisks(u64, u64),
    /// Every daemon with a clock of its own.
    Clocks,
}

/// What a job learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learns {
    /// A word, by textual inversion: the state is in each rank.
    Word,
    /// A LoRA and a word: the engine holds the state.
    Lora,
    /// A UNet with an average of its weights: the engine holds the state.
    Unet,
}

/// A line of a row's script: a moment to wait for, or an action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    // Moments.
    /// This step is stored.
    Step(i64),
    /// Some milliseconds, at random.
    Pause(Between),
    /// The ranks prepare.
    Preparing,
    /// A rank says that it waits for the next ring, or the coordinator that it is made.
    Reforming,
    /// A ring of this epoch or a newer one has made a step.
    StepOfEpoch(u64),
    /// This worker has a rank in the newest ring.
    Member(Who),
    /// The newest ring has so many members.
    Members(usize),
    /// This worker has no rank in the newest ring: not waited for, but required.
    NoMember(Who),
    /// A line of the job's log has this text.
    Says(&'static str),
    /// A part of a file has come to the coordinator, and the rest has not.
    Uploading,
    /// A file whose name has this text is in this daemon's state folder.
    File(Who, &'static str),

    // Faults.
    /// SIGKILL.
    Kill(Who),
    /// SIGTERM.
    Terminate(Who),
    /// SIGSTOP.
    Stop(Who),
    /// SIGCONT.
    Continue(Who),
    /// Starts a daemon that ended again, on its state.
    StartAgain(Who),
    /// Starts one more worker.
    Add,
    /// Starts one more worker, of another numerics class.
    AddOther,
    /// Starts one more worker, which says that it is of another build. On proxies.
    AddBuild(Build),
    /// Cuts off the second half of the newest checkpoint that the coordinator keeps.
    TruncateCheckpoint,
    /// Flips a bit in the middle of it.
    FlipCheckpoint,
    /// The link on which a worker is dialled by its neighbours.
    RingLink(Who, Weather),
    /// The link on which a worker dials the coordinator.
    CoordinatorLink(Who, Weather),
    /// Resets the connections on which a worker is dialled by its neighbours.
    CutRingLink(Who),
    /// As above after so many bytes more.
    CutRingLinkAfter(Who, u64),
    /// Flips a bit in each of so many of the next parts that go to a worker from its neighbours.
    FlipBits(Who, u32),
    /// Cuts the cable of a worker.
    CutCable(Who),
    /// Mends it.
    MendCable(Who),
    /// Packets of the first to the second are lost.
    Lose(Who, Who),
    /// It arrives again.
    Find(Who, Who),
    /// A firewall says to the first that it may not call the second's port.
    Refuse(Who, Who),
    /// Undoes the newest Lose, Refuse or RingLink, whoever has which rank by now.
    MendLink,
    /// Fills the disk of a daemon.
    FillDisk(Who),
    /// Fills it up to 4 MiB.
    CrowdDisk(Who),
    /// Makes room on it.
    FreeDisk(Who),
    /// GetJob says of the job what it waits for, with this text.
    Waits(&'static str),
    /// No more files can be opened.
    NoDescriptors(Who),
    /// They can again.
    Descriptors(Who),
    /// The clock of a daemon is so many seconds off.
    Clock(Who, i64),
    /// The clocks of all workers are right.
    SetClocksRight,
    /// Nothing is done: what the workers' flags make them do comes now.
    ByItself,
    /// For so many seconds one fault after the other at random, each mended after a while. On proxies.
    Mixed(u64),
}

/// A range of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// The least.
    pub from: u64,
    /// More than the most.
    pub to: u64,
}

/// A pause of that many milliseconds, at random.
pub const fn pause(milliseconds: Range<u64>) -> Act {
    Act::Pause(Between { from: milliseconds.start, to: milliseconds.end })
}

impl Act {
    /// It is waited for, and nothing is done.
    pub fn is_moment(&self) -> bool {
        matches!(
            self,
            Self::Step(_)
                | Self::Pause(_)
                | Self::Preparing
                | Self::Reforming
                | Self::StepOfEpoch(_)
                | Self::Member(_)
                | Self::Members(_)
                | Self::NoMember(_)
                | Self::Says(_)
                | Self::Waits(_)
                | Self::Uploading
                | Self::File(..)
        )
    }

    /// The ring may lose something by it: from the first such act on the time is taken.
    pub fn hurts(&self) -> bool {
        match self {
            Self::StartAgain(_)
            | Self::Add
            | Self::AddOther
            | Self::AddBuild(_)
            | Self::Continue(_)
            | Self::MendCable(_)
            | Self::Find(..)
            | Self::MendLink
            | Self::SetClocksRight
            | Self::FreeDisk(_)
            | Self::Descriptors(_) => false,
            Self::RingLink(_, weather) | Self::CoordinatorLink(_, weather) => {
                weather.forth.held || weather.back.held || weather.resets
            }
            other => !other.is_moment(),
        }
    }
}

/// A row: what runs, on what, and what happens to it.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name, which is also that of its test.
    pub name: &'static str,
    /// Its daemons' program.
    pub program: &'static str,
    /// The flags of each worker that is there from the beginning.
    pub workers: Vec<Vec<String>>,
    /// Steps of its job.
    pub steps: i64,
    /// What its job learns.
    pub learns: Learns,
    /// Keys of its job file.
    pub keys: Vec<(&'static str, Value)>,
    /// Environment of the daemons.
    pub ground: Ground,
    /// The daemons speak TLS, also where the matrix is played without.
    pub tls: bool,
    /// The submit command's answers are lost for a while, so that it asks again.
    pub replies_are_lost: bool,
    /// The script.
    pub acts: Vec<Act>,
    /// The ring must not change: nothing of it was lost.
    pub one_ring: bool,
    /// Seconds from the first harm to the next ring's first step at most, if there is a bound.
    pub within: Option<u64>,
    /// In the end the same checkpoints are there as without faults.
    pub keeps_checkpoints: bool,
    /// More flags of the one worker of the run without faults.
    pub clean_flags: Vec<String>,
    /// Seconds after which it counts as hanging.
    pub deadline: u64,
}

impl Row {
    /// A job of 60 steps on so many fake workers, a gradient of which takes 25 ms.
    pub fn new(name: &'static str, workers: usize) -> Self {
        Self {
            name,
            program: crate::daemon::FAKE_WORKER,
            workers: vec![vec!["--gradient-takes=25".to_owned()]; workers],
            steps: 60,
            learns: Learns::Word,
            keys: Vec::new(),
            ground: Ground::Loopback,
            tls: false,
            replies_are_lost: false,
            acts: Vec::new(),
            one_ring: false,
            within: None,
            keeps_checkpoints: false,
            clean_flags: Vec::new(),
            deadline: 60,
        }
    }

    /// Sets the number of steps.
    pub fn steps(self, steps: i64) -> Self {
        Self { steps, ..self }
    }

    /// With a job that learns something else.
    pub fn learning(self, learns: Learns) -> Self {
        Self { learns, ..self }
    }

    /// Sets flags of all workers.
    pub fn flags(mut self, flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.workers = vec![flags; self.workers.len()];
        self
    }

    /// Adds a flag for one worker, from 1.
    pub fn flag_of(mut self, worker: usize, flag: &str) -> Self {
        self.workers[worker - 1].push(flag.to_owned());
        self
    }

    /// Adds a key to the job file.
    pub fn key(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.keys.push((key, value.into()));
        self
    }

    /// Sets a state of 64 x `width` x 3 floats, and gradients that take no time.
    pub fn large(self, width: usize) -> Self {
        let width = format!("--text-width={width}");
        let flags = [&width[..]];
        let mut row = self.flags(&flags).key("train.num_vectors", 64);
        row.clean_flags.push(width);
        row
    }

    /// On another ground.
    pub fn on(self, ground: Ground) -> Self {
        Self { ground, ..self }
    }

    /// Makes the daemons speak TLS.
    pub fn over_tls(self) -> Self {
        Self { tls: true, ..self }
    }

    /// Sets the script.
    pub fn acts(self, acts: impl Into<Vec<Act>>) -> Self {
        Self { acts: acts.into(), ..self }
    }

    /// Requires that the ring does not change.
    pub fn one_ring(self) -> Self {
        Self { one_ring: true, ..self }
    }

    /// Requires that the job goes on within so many seconds.
    pub fn within(self, seconds: u64) -> Self {
        Self { within: Some(seconds), ..self }
    }

    /// Sets the deadline.
    pub fn deadline(self, deadline: u64) -> Self {
        Self { deadline, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_taken_from_the_first_harm_on() {
        let link = |weather| Act::RingLink(Who::Rank(0), weather);
        assert!(link(Weather::black_hole()).hurts() && Act::Kill(Who::Coordinator).hurts());
        let others = [link(Weather::narrow(5)), link(Weather::default()), Act::Add, Act::Step(3)];
        assert!(!others.iter().any(Act::hurts));
    }
}
