//! Cores that one worker computes on and no other.
//!
//! A worker holds a socket for each of its cores, with a name that says which core it is. The system lets only one
//! process have a name, shows it to all users of a network namespace, needs no folder for it, and takes it back when the
//! process ends, however it ends. Nothing is ever sent.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt, io,
    net::Shutdown,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

use super::{Core, Cores, Portion};

/// Variables by which users pin OpenMP's threads.
const CHOICES: [&str; 4] = ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"];

/// The cores of a worker's threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CoreClaim {
    /// A core for each thread, which no other worker computes on.
    Own(Cores),
    /// Unpinned, for a reason.
    Anywhere(Reason),
}

/// Why threads have no cores of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// This environment variable says where they are.
    Chosen(&'static str),
    /// More workers than cores.
    MoreWorkersThanCores,
    /// More threads than cores.
    TooFew { threads: usize, cores: usize },
    /// A quota of time says how much of which cores it is.
    Quota,
    /// Other workers have some of them.
    Taken { threads: usize, taken: Cores },
    /// The system lets nobody say which are taken.
    Unclaimed(io::ErrorKind),
}

impl CoreClaim {
    /// The processor of each thread; none where the system decides.
    pub(crate) fn processors(&self) -> Vec<usize> {
        match self {
            Self::Own(cores) => cores.processors(),
            Self::Anywhere(_) => Vec::new(),
        }
    }

    /// Several workers were given the same core.
    pub(crate) fn has_fewer_cores_than_workers(&self) -> bool {
        matches!(self, Self::Anywhere(Reason::MoreWorkersThanCores))
    }

    /// Threads may wait for another worker's.
    pub(crate) fn is_contended(&self) -> bool {
        matches!(self, Self::Anywhere(Reason::Taken { .. } | Reason::MoreWorkersThanCores))
    }
}

impl fmt::Display for CoreClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(cores) => write!(f, "a core for each thread: {cores}"),
            Self::Anywhere(Reason::Chosen(variable)) => write!(f, "wherever {variable} says"),
            Self::Anywhere(Reason::MoreWorkersThanCores) => {
                f.write_str("wherever the system puts them: more workers than cores")
            }
            Self::Anywhere(Reason::TooFew { threads, cores }) => {
                write!(f, "wherever the system puts them: {threads} threads, {cores} cores")
            }
            Self::Anywhere(Reason::Quota) => {
                f.write_str("wherever the system puts them: a quota of time (cpu.max) names no cores")
            }
            Self::Anywhere(Reason::Taken { threads, taken }) => {
                write!(f, "wherever the system puts them: {threads} threads, and other workers have {taken}")
            }
            Self::Anywhere(Reason::Unclaimed(kind)) => {
                write!(f, "wherever the system puts them: it gives no socket to claim cores with ({kind})")
            }
        }
    }
}

/// A worker's wish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) portion: &'a Portion,
    pub(crate) threads: usize,
    /// Processors that a quota pays for.
    pub(crate) quota: Option<usize>,
}

impl Wish<'_> {
    /// Its cores, if these cores are taken and these variables set.
    pub(super) fn place(
        self,
        is_taken: impl Fn(&Core) -> bool,
        is_set: impl Fn(&'static str) -> bool,
    ) -> CoreClaim {
        let Self { portion: Portion { cores, shared }, threads, quota } = self;
        let reason = if let Some(variable) = CHOICES.into_iter().find(|name| is_set(name)) {
            Reason::Chosen(variable)
        } else if *shared {
            Reason::MoreWorkersThanCores
        } else if cores.count() < threads {
            Reason::TooFew { threads, cores: cores.count() }
        } else if quota.is_some_and(|quota| quota < cores.count()) {
            Reason::Quota
        } else if let Some(own) = cores.free(threads, &is_taken) {
            return CoreClaim::Own(own);
        } else {
            let taken = Cores(cores.iter().filter(|core| is_taken(core)).copied().collect());
            Reason::Taken { threads, taken }
        };
        CoreClaim::Anywhere(reason)
    }

    /// The cores that it would get now. Claims nothing.
    pub(crate) fn look(self) -> CoreClaim {
        self.place(is_held, |name| std::env::var_os(name).is_some())
    }
}

/// The cores of a worker, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    place: CoreClaim,
    _held: Vec<UnixDatagram>,
}

impl Claim {
    /// Takes the cores for what a worker wants, if they can be had.
    pub(crate) fn take(wish: Wish<'_>) -> Self {
        let mut lost = BTreeSet::new();
        loop {
            let place = wish.place(
                |core| lost.contains(&core.name) || is_held(core),
                |name| std::env::var_os(name).is_some(),
            );
            let CoreClaim::Own(cores) = &place else { return Self { place, _held: Vec::new() } };
            let mut held = Vec::new();
            for core in cores.iter() {
                match hold(core) {
                    Ok(socket) => held.push(socket),
                    // Somebody was quicker: perhaps others are left.
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                        lost.insert(core.name);
                        break;
                    }
                    Err(error) => {
                        let place = CoreClaim::Anywhere(Reason::Unclaimed(error.kind()));
                        return Self { place, _held: Vec::new() };
                    }
                }
            }
            if held.len() == cores.count() {
                return Self { place, _held: held };
            }
        }
    }

    pub(crate) fn place(&self) -> &CoreClaim {
        &self.place
    }
}

fn address(core: &Core) -> io::Result<SocketAddr> {
    let mut name = OsString::from("ringtune-worker/core/");
    name.push(core.name.to_string());
    SocketAddr::from_abstract_name(name.as_encoded_bytes())
}

fn hold(core: &Core) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::bind_addr(&address(core)?)?;
    // Nothing is exchanged here.
    socket.shutdown(Shutdown::Read)?;
    Ok(socket)
}

/// Another worker has it: its name can be dialled.
fn is_held(core: &Core) -> bool {
    let dial = || UnixDatagram::unbound()?.connect_addr(&address(core)?);
    dial().is_ok()
}
