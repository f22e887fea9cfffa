//! Entering a ring: the ranks' plan, and how those behind catch up.

use ringtune_shared::ring::{EntryPlan, Standing, plan_entry};
use ringtune_worker::{
    ring::{Trouble, TroubleKind},
    session::RankEvent,
};

use crate::{chain, faults::Planted, life::At, ring::Row, world::World};

impl World {
    /// All ranks compare their states, and make the same plan.
    pub(crate) fn plan(&mut self, worker: usize, rows: &[Row]) {
        let standings: Vec<Standing> = rows
            .iter()
            .filter_map(|row| if let Row::Standing(standing) = row { Some(*standing) } else { None })
            .collect();
        let mut plan = plan_entry(&standings).unwrap_or_else(|diverged| panic!("{diverged}"));
        if self.planted == Some(Planted::StateFromBehind) && !plan.takers.is_empty() {
            let behind = standings.iter().enumerate().min_by_key(|(_, one)| one.step);
            let (giver, one) = behind.expect("a rank");
            let takers = (0..standings.len()).filter(|rank| standings[*rank].step > one.step).collect();
            plan = EntryPlan { step: one.step, state: one.state, givers: vec![giver], takers };
        }
        if plan.takers.is_empty() {
            return self.next(worker, At::Close, Row::Plain);
        }
        let unstored = self.life(worker).unstored.clone();
        self.next(worker, At::Tell(plan), Row::Unstored(unstored));
    }

    /// It knows of the steps that it did not do; then it takes the state after them.
    pub(crate) fn was_told(&mut self, worker: usize, plan: EntryPlan, rows: &[Row]) {
        let Some(Row::Unstored(steps)) = rows.get(plan.first()) else {
            panic!("reports are not told: {rows:?}")
        };
        let life = self.life(worker);
        life.told = steps.iter().filter(|step| step.step > life.entered_at).copied().collect();
        if plan.takers.contains(&life.rank.unwrap_or_default()) {
            return self.be_at(worker, At::Fetch(plan), Some((2, 40)));
        }
        self.next(worker, At::Close, Row::Plain);
    }

    /// The state came, or its stream broke.
    pub(crate) fn has_fetched(&mut self, worker: usize, plan: &EntryPlan) {
        let key = self.life(worker).ring_key();
        let giver = plan.giver_of(self.life(worker).rank.unwrap_or_default());
        if !self.gives_state(key, giver, worker) {
            let text = "the stream of the state ended".to_owned();
            let trouble = Trouble { kind: TroubleKind::Closed, rank: giver, text };
            self.life(worker).lost.get_or_insert(trouble);
            return self.look(worker);
        }
        let giver = self.rings[&key].members[giver];
        let state = self.life(giver).state;
        assert_eq!(chain::hash(state), plan.state, "another state than was promised");
        let life = self.life(worker);
        let before = life.step;
        (life.step, life.state, life.trainee, life.learned) = (plan.step, state, state, true);
        assert!(plan.step >= before, "worker {worker} goes back from step {before} to {}", plan.step);
        for step in std::mem::take(&mut self.life(worker).told) {
            let life = self.life(worker);
            life.unstored.push(step);
            if let Some(files) = &mut life.files {
                files.record(step.step);
            }
            self.says(worker, RankEvent::Step(step));
        }
        self.next(worker, At::Close, Row::Plain);
    }
}
