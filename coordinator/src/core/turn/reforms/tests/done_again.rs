//! Steps that a later ring does again.

use super::*;

#[test]
fn a_step_that_is_done_again_may_differ_where_the_ring_decides_and_may_shrink() {
    for (exchange, min, may) in [("fast", 1, true), ("fast", 2, false), ("exact", 1, false)] {
        let job = format!(
            "kind = \"gpt2_finetune\"\nmodel.base = \"/m\"\ngpt2.tokens = \"/t\"\ngpt2.exchange = \"{exchange}\"\n\
             cluster.world_size = 2\ncluster.min_world_size = {min}\n"
        );
        let mut world = World::training_job(&job, 2, 0);
        ["one", "another"].iter().for_each(|state| world.step(0, 1, 1, state));
        let stops = |told: &(usize, Down)| matches!(told, (_, Down::StopRank { .. }));
        assert_eq!(world.told.iter().any(stops), !may, "{exchange}, {min}: {:?}", world.told);
    }
}
