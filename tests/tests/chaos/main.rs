//! The fault matrix on fake engines, one round: each row of `ringtune_tests::chaos::rows` is a test, of which
//! `make nightly` runs all and `make test` those that `.config/nextest.toml` names. `make chaos` plays many rounds.

mod faults;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use ringtune_tests::chaos::{self, Learns, rows};

async fn play(name: &str, learns: Learns) -> Result<()> {
    chaos::run(&rows::named(name)?.learning(learns), chaos::seed()).await?;
    Ok(())
}

/// Makes two tests of each row.
macro_rules! rows {
    ($($name:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> Result<()> {
                play(stringify!($name), Learns::Word).await
            }
        )*

        /// The same with a job whose state the engine holds.
        mod lora {
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> Result<()> {
                    play(stringify!($name), Learns::Lora).await
                }
            )*
        }

        #[test]
        fn every_row_is_a_test() -> Result<()> {
            let tests = BTreeSet::from([$(stringify!($name)),*]);
            let all = rows::all();
            let rows: BTreeSet<&str> = all.iter().map(|row| row.name).collect();
            ensure!(tests == rows, "no test, or no row: {:?}", tests.symmetric_difference(&rows));
            Ok(())
        }
    };
}

/// With a job whose state has an average too: each way to lose a rank that needs no large state.
mod unet {
    use super::*;

    macro_rules! of_unet {
        ($($name:ident),* $(,)?) => {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> Result<()> {
                    play(stringify!($name), Learns::Unet).await
                }
            )*
        };
    }

    of_unet![
        a_worker_dies_while_it_prepares,
        a_worker_dies_while_it_computes,
        rank_0_dies_while_it_computes,
        a_worker_dies_in_the_exchange,
        a_worker_dies_in_the_optimizer,
        rank_0_dies_at_a_checkpoint,
        all_die_and_come_back,
        a_worker_dies_and_comes_back,
    ];
}

rows![
    a_worker_dies_while_it_prepares,
    a_worker_dies_while_it_computes,
    rank_0_dies_while_it_computes,
    a_worker_dies_in_the_exchange,
    a_worker_dies_in_the_optimizer,
    rank_0_dies_at_a_checkpoint,
    rank_0_dies_while_a_checkpoint_is_sent,
    a_worker_dies_while_it_draws_a_preview,
    rank_0_dies_at_the_last_upload,
    two_of_three_die_at_once,
    all_die_and_come_back,
    the_newest_checkpoint_is_cut_short,
    a_bit_of_the_newest_checkpoint_flips,
    a_worker_dies_while_the_ring_forms_anew,
    a_worker_dies_and_comes_back,
    a_worker_of_another_class_comes,
    a_worker_of_a_newer_build_comes,
    a_worker_of_an_older_build_comes,
    a_newcomer_dies_while_it_takes_the_state,
    the_giver_of_the_state_dies_while_it_gives,
    a_worker_is_silent_for_too_long,
    rank_0_is_silent_for_too_long,
    a_worker_is_silent_for_a_moment,
    a_worker_ends_as_it_is_told,
    an_engine_hangs,
    one_rank_computes_not_a_number,
    a_worker_is_cut_off_from_all,
    a_worker_is_heard_by_nobody,
    one_link_of_the_ring_breaks,
    a_link_of_two_is_reset_for_good,
    a_link_of_three_is_dropped_for_good,
    a_link_of_five_is_rejected_for_good,
    a_connection_breaks_within_a_chunk,
    all_connections_of_a_worker_break,
    an_idle_link_goes_dead,
    bits_flip_on_the_way,
    all_links_are_slow_and_uneven,
    one_worker_has_a_narrow_link,
    everything_at_random,
    the_coordinator_dies_again_and_again,
    the_coordinator_and_a_worker_die_at_once,
    the_coordinator_is_silent,
    answers_to_a_submit_are_lost,
    the_coordinators_clock_jumps,
    a_workers_disk_is_full,
    the_coordinators_disk_is_full_for_a_while,
    the_coordinators_disk_is_full_at_the_end,
    the_coordinators_disk_is_low_at_the_end,
    a_worker_can_open_no_more_files,
    the_coordinator_can_open_no_more_files,
    the_clocks_of_workers_jump,
    a_workers_clock_is_three_hours_behind,
];
