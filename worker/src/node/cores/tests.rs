//! Machines as their systems describe them.

use std::{collections::BTreeSet, fs, path::Path};

use proptest::prelude::*;

use super::{
    claim::{Reason, Wish},
    *,
};

/// A made-up machine.
#[derive(Clone, Copy, Debug)]
struct Machine {
    nodes: usize,
    nodes_of_socket: usize,
    cores_of_node: usize,
    hyperthreads: usize,
}

const TWO_CORES: Machine = Machine { nodes: 1, nodes_of_socket: 1, cores_of_node: 2, hyperthreads: 1 };
const ONE_SOCKET: Machine = Machine { nodes: 1, nodes_of_socket: 1, cores_of_node: 8, hyperthreads: 2 };
const TWO_SOCKETS: Machine = Machine { nodes: 2, nodes_of_socket: 1, cores_of_node: 28, hyperthreads: 2 };
const SUB_NUMA: Machine = Machine { nodes: 4, nodes_of_socket: 2, cores_of_node: 14, hyperthreads: 2 };

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

impl Machine {
    fn cores(self) -> usize {
        self.nodes * self.cores_of_node
    }

    /// As Linux numbers them: one processor of each core, and then the second of each.
    fn write(self, root: &Path, allowed: &str, online: &str) {
        let cores = self.cores();
        let all_of = |core: usize| (0..self.hyperthreads).map(move |thread| thread * cores + core);
        let listed =
            |numbers: Vec<usize>| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",") + "\n";
        for node in 0..self.nodes {
            let of_node = node * self.cores_of_node..(node + 1) * self.cores_of_node;
            let list = listed(of_node.clone().flat_map(all_of).collect());
            write(root, &format!("sys/devices/system/node/node{node}/cpulist"), &list);
            for (core, processor) in of_node.flat_map(|core| all_of(core).map(move |one| (core, one))) {
                let of = format!("sys/devices/system/cpu/cpu{processor}/topology");
                write(root, &format!("{of}/thread_siblings_list"), &listed(all_of(core).collect()));
                write(
                    root,
                    &format!("{of}/physical_package_id"),
                    &format!("{}\n", node / self.nodes_of_socket),
                );
            }
        }
        write(root, "proc/self/status", &format!("Cpus_allowed_list:\t{allowed}\n"));
        write(root, "sys/devices/system/cpu/online", &format!("{online}\n"));
    }

    fn read(self, allowed: &str, online: &str) -> Cores {
        let root = tempfile::tempdir().unwrap();
        self.write(root.path(), allowed, online);
        Cores::read(root.path())
    }

    fn whole(self) -> Cores {
        let all = format!("0-{}", self.cores() * self.hyperthreads - 1);
        self.read(&all, &all)
    }
}

/// The portion of each of `of` workers.
fn parts(cores: &Cores, of: u32) -> Vec<String> {
    (1..=of).map(|number| cores.portion(Share { number, of }).cores.to_string()).collect()
}

#[test]
fn hyperthreads_of_a_core_count_once() {
    assert_eq!(TWO_CORES.whole().to_string(), "processors 0-1 (memory node 0)");
    assert_eq!(ONE_SOCKET.whole().to_string(), "processors 0-7 (memory node 0)");
    assert_eq!(TWO_SOCKETS.whole().to_string(), "processors 0-55 (memory nodes 0-1)");
    assert_eq!(TWO_SOCKETS.whole().count(), 56);
    assert_eq!(SUB_NUMA.whole().memory_nodes(), [0, 1, 2, 3]);
}

#[test]
fn an_affinity_with_holes_and_processors_that_are_offline() {
    // Of the second node, by their second hyperthreads: other workers know these cores by the first ones.
    let second = TWO_SOCKETS.read("84-86,90", "0-111");
    assert_eq!(second.to_string(), "processors 84-86,90 (memory node 1)");
    assert_eq!(second.iter().map(|core| core.name).collect::<Vec<_>>(), [28, 29, 30, 34]);
    // Both hyperthreads of some, one of others.
    let odd = ONE_SOCKET.read("0,2,3,8,11,12", "0-15");
    assert_eq!(odd.to_string(), "processors 0,2-3,12 (memory node 0)");
    // Offline cores, and cores of an affinity that do not exist.
    assert_eq!(ONE_SOCKET.read("0-1023", "0-3,6").to_string(), "processors 0-3,6 (memory node 0)");
    // A system that says nothing.
    let nothing = tempfile::tempdir().unwrap();
    assert_eq!(Cores::read(nothing.path()).to_string(), "processor 0 (memory node 0)");
}

#[test]
fn workers_get_whole_memory_nodes_first() {
    assert_eq!(parts(&TWO_CORES.whole(), 1), ["processors 0-1 (memory node 0)"]);
    assert_eq!(parts(&TWO_CORES.whole(), 2), ["processor 0 (memory node 0)", "processor 1 (memory node 0)"]);
    let sockets = TWO_SOCKETS.whole();
    assert_eq!(parts(&sockets, 2), ["processors 0-27 (memory node 0)", "processors 28-55 (memory node 1)"]);
    let four =
        ["0-13 (memory node 0", "14-27 (memory node 0", "28-41 (memory node 1", "42-55 (memory node 1"];
    assert_eq!(parts(&sockets, 4), four.map(|part| format!("processors {part})")));
    // Eighteen each would cross from one node to the other: fourteen do not.
    assert_eq!(parts(&sockets, 3)[..2], four.map(|part| format!("processors {part})"))[..2]);
    assert_eq!(parts(&sockets, 3)[2], "processors 28-41 (memory node 1)");
    let clusters = SUB_NUMA.whole();
    assert_eq!(
        parts(&clusters, 2),
        ["processors 0-27 (memory nodes 0-1)", "processors 28-55 (memory nodes 2-3)"]
    );
    assert_eq!(parts(&clusters, 4)[3], "processors 42-55 (memory node 3)");
    // Most of one node and little of the other: half of them is more than what is nearer.
    let uneven = TWO_SOCKETS.read("0-9,28-55", "0-111");
    assert_eq!(
        parts(&uneven, 2),
        ["processors 0-9,28-36 (memory nodes 0-1)", "processors 37-55 (memory node 1)"]
    );
}

#[test]
fn fewer_cores_than_workers_are_shared() {
    let cores = TWO_CORES.whole();
    let portions: Vec<Portion> = (1..=3).map(|number| cores.portion(Share { number, of: 3 })).collect();
    assert!(portions.iter().all(|portion| portion.shared && portion.cores.count() == 1));
    assert_eq!(portions[0], portions[2]);
    let wish = Wish { portion: &portions[0], threads: 1, quota: None };
    assert_eq!(wish.place(|_| false, |_| false), CoreClaim::Anywhere(Reason::MoreWorkersThanCores));
}

proptest! {
    #[test]
    fn parts_are_equal_and_have_no_core_in_common(
        allowed in prop::collection::btree_set(0usize..56, 1..56), of in 1u32..20,
    ) {
        let of_two_sockets = |number: &usize| {
            Core { socket: number / 28, memory_node: number / 28, processor: *number, name: *number }
        };
        let cores = Cores(allowed.iter().map(of_two_sockets).collect());
        let portions: Vec<Portion> = (1..=of).map(|number| cores.portion(Share { number, of })).collect();
        let counts: BTreeSet<usize> = portions.iter().map(|portion| portion.cores.count()).collect();
        prop_assert_eq!(counts.len(), 1);
        let names: Vec<usize> = portions.iter().flat_map(|one| one.cores.iter().map(|core| core.name)).collect();
        if portions.iter().any(|portion| portion.shared) {
            prop_assert!(cores.count() < of as usize);
        } else {
            prop_assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
            // At most a quarter of the cores is given up for being near.
            prop_assert!(portions[0].cores.count() * 4 >= cores.count() / of as usize * 3);
        }
    }
}

#[test]
fn threads_fill_one_memory_node_before_the_next() {
    let cores = TWO_SOCKETS.whole();
    let free = |threads, taken: std::ops::Range<usize>| {
        cores.free(threads, |core| taken.contains(&core.name)).map(|cores| cores.to_string())
    };
    assert_eq!(free(28, 0..0).unwrap(), "processors 0-27 (memory node 0)");
    assert_eq!(free(4, 0..0).unwrap(), "processors 0-3 (memory node 0)");
    // Two of the first are free, and all of the second.
    assert_eq!(free(4, 0..26).unwrap(), "processors 28-31 (memory node 1)");
    assert_eq!(free(30, 0..26).unwrap(), "processors 26-55 (memory nodes 0-1)");
    assert_eq!(free(30, 0..27), None);
    assert_eq!(free(0, 0..0), None);
}

#[test]
fn threads_have_cores_of_their_own_or_it_is_said_why_not() {
    let portion = ONE_SOCKET.whole().portion(Share::WHOLE);
    let wish = |threads, quota| Wish { portion: &portion, threads, quota };
    let place = |wish: Wish<'_>| wish.place(|core| core.name < 3, |_| false);
    assert_eq!(place(wish(5, None)).processors(), [3, 4, 5, 6, 7]);
    assert_eq!(place(wish(5, Some(8))).processors(), [3, 4, 5, 6, 7]);
    assert!(place(wish(5, Some(7))).processors().is_empty(), "whose cores a quota's are nobody knows");
    let taken = place(wish(6, None));
    assert!(taken.is_contended() && taken.processors().is_empty());
    assert!(taken.to_string().contains("other workers have processors 0-2 (memory node 0)"), "{taken}");
    assert!(place(wish(9, None)).to_string().contains("9 threads, 8 cores"));
    let chosen = wish(5, None).place(|_| false, |name| name == "OMP_PLACES");
    assert!(chosen.to_string().contains("OMP_PLACES"), "{chosen}");
}

#[test]
fn two_workers_never_have_a_core_in_common() {
    // Cores of no machine, so that no worker that runs beside has them.
    let core = |name: usize| Core { socket: 0, memory_node: 0, processor: name, name: 1 << 40 | name };
    let portion = Portion { cores: Cores((0..4).map(core).collect()), shared: false };
    let wish = |threads| Wish { portion: &portion, threads, quota: None };
    let first = Claim::take(wish(2));
    assert_eq!(first.place().processors(), [0, 1]);
    assert_eq!(wish(2).look().processors(), [2, 3]);
    let second = Claim::take(wish(2));
    assert_eq!(second.place().processors(), [2, 3]);
    assert!(Claim::take(wish(1)).place().is_contended());
    // A worker's cores are free after its end.
    drop(first);
    assert_eq!(Claim::take(wish(1)).place().processors(), [0]);
    assert!(wish(3).look().is_contended());
}

#[test]
fn shares_are_parts_of_a_whole() {
    let share = |text: &str| text.parse::<Share>().ok();
    assert_eq!(share("2/3"), Some(Share { number: 2, of: 3 }));
    assert_eq!(share("1/1"), Some(Share::WHOLE));
    for wrong in ["", "1", "/", "0/1", "2/1", "1/257", "-1/2", "1/2 "] {
        assert_eq!(share(wrong), None, "{wrong}");
    }
}
