//! Which cores a worker computes on: pure functions of what the system says of its processors.
//!
//! Each compute thread has a physical core of its own where the worker's cores are its own. A worker claims cores
//! (`claim.rs`), and the native shim keeps OpenMP's threads there (`csrc/threads.cpp` of the model crate). The other
//! threads of the process run on any core. Products of our own are cut into tasks that threads take as they finish, so
//! that none waits long for a core on which something else runs.

mod claim;
mod share;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, fs, path::Path};

pub(crate) use claim::{Claim, CoreClaim, Wish};
pub use share::{Share, WrongShare};

use super::{cpu::allowed_processors, parse_list};

/// Parts that keep to one memory node are preferred while they have at least three quarters of the cores that parts
/// across nodes would have: a core that reads another node's memory loses about as much.
const WORTH_ONE_NODE: (usize, usize) = (3, 4);

/// A physical core that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Core {
    pub(crate) socket: usize,
    pub(crate) memory_node: usize,
    /// The lowest of its processors that this process may use: a thread that computes is put there.
    pub(crate) processor: usize,
    /// The lowest of all its processors: by it all workers of a machine call it, whatever each may use of it.
    pub(crate) name: usize,
}

/// The cores that this process may use: its affinity, without what is offline, and hyperthreads of one core once. In
/// the order of sockets, memory nodes and processors, so that neighbours are near each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores(Vec<Core>);

/// A worker's portion of its machine's cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    pub(crate) cores: Cores,
    /// There are more workers than cores: others have the same.
    pub(crate) shared: bool,
}

impl Cores {
    /// Reads them below `root`.
    pub(super) fn read(root: &Path) -> Self {
        let nodes = memory_nodes(root);
        let topology = |processor: usize, file: &str| {
            let path = format!("sys/devices/system/cpu/cpu{processor}/topology/{file}");
            fs::read_to_string(root.join(path)).ok()
        };
        let mut by_name = BTreeMap::new();
        for processor in allowed_processors(root) {
            let siblings = topology(processor, "thread_siblings_list").map(|text| parse_list(&text));
            let name = siblings.and_then(|all| all.into_iter().min()).unwrap_or(processor);
            let socket = topology(processor, "physical_package_id").and_then(|text| text.trim().parse().ok());
            let memory_node = nodes.get(&processor).copied().unwrap_or(0);
            let core = Core { socket: socket.unwrap_or(0), memory_node, processor, name };
            by_name.entry(name).and_modify(|known: &mut Core| *known = (*known).min(core)).or_insert(core);
        }
        let mut cores: Vec<Core> = by_name.into_values().collect();
        cores.sort_unstable();
        Self(cores)
    }

    /// Their number, at least 1.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The part of one of several workers. All get equally many cores, as the ranks of a job get equally many threads;
    /// what is left over serves whatever else they do. A part keeps to one memory node where that costs few cores, and
    /// else goes on in the next one.
    pub(crate) fn portion(&self, share: Share) -> Portion {
        let (of, index) = (share.of as usize, share.number as usize - 1);
        let even = self.0.len() / of;
        if even == 0 {
            let one = self.0.get(index % self.0.len().max(1)).copied();
            return Portion { cores: Self(Vec::from_iter(one)), shared: true };
        }
        let nodes: Vec<&[Core]> =
            self.0.chunk_by(|a, b| (a.socket, a.memory_node) == (b.socket, b.memory_node)).collect();
        let fit = |size: usize| nodes.iter().map(|node| node.len() / size).sum::<usize>() >= of;
        let within = (1..=even).rev().find(|size| fit(*size)).unwrap_or(1);
        let (least, most) = WORTH_ONE_NODE;
        let mut parts: Box<dyn Iterator<Item = &[Core]>> = if within * most >= even * least && of > 1 {
            Box::new(nodes.iter().flat_map(|node| node.chunks_exact(within)))
        } else {
            Box::new(self.0.chunks_exact(even))
        };
        Portion { cores: Self(parts.nth(index).unwrap_or(&self.0).to_vec()), shared: false }
    }

    /// Cores for so many threads, none of which `is_taken`: of the first memory node that has enough, or else one
    /// node after the other. None: there are too few.
    pub(crate) fn free(&self, threads: usize, is_taken: impl Fn(&Core) -> bool) -> Option<Self> {
        let free: Vec<Core> = self.0.iter().filter(|core| !is_taken(core)).copied().collect();
        if threads == 0 || free.len() < threads {
            return None;
        }
        let enough = free
            .chunk_by(|a, b| (a.socket, a.memory_node) == (b.socket, b.memory_node))
            .find(|node| node.len() >= threads);
        Some(Self(enough.unwrap_or(&free)[..threads].to_vec()))
    }

    /// The processor of each, in their order.
    pub(crate) fn processors(&self) -> Vec<usize> {
        self.0.iter().map(|core| core.processor).collect()
    }

    /// Each of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Core> {
        self.0.iter()
    }

    /// The memory nodes that they are on, in order.
    pub(crate) fn memory_nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = self.0.iter().map(|core| core.memory_node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// "processors 0-13,28 (memory node 0)".
impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |numbers: Vec<usize>| {
            let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
                [first, .., last] => format!("{first}-{last}"),
                run => run.iter().map(usize::to_string).collect(),
            });
            runs.collect::<Vec<_>>().join(",")
        };
        let (processors, nodes) = (self.processors(), self.memory_nodes());
        let (plural, nodes_plural) = (ending(processors.len()), ending(nodes.len()));
        write!(f, "processor{plural} {} (memory node{nodes_plural} {})", listed(processors), listed(nodes))
    }
}

fn ending(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The memory node of each processor.
fn memory_nodes(root: &Path) -> BTreeMap<usize, usize> {
    let mut nodes = BTreeMap::new();
    for entry in fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<usize>().ok());
        let (Some(number), Ok(list)) = (number, fs::read_to_string(entry.path().join("cpulist"))) else {
            continue;
        };
        nodes.extend(parse_list(&list).into_iter().map(|processor| (processor, number)));
    }
    nodes
}
