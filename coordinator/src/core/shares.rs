//! Fair share: what each owner has used of the cluster, in rank-seconds that fade.
//!
//! A rank that is held for a second counts one rank-second, and half of that a half-life later. Who has used less for their
//! weight comes first among jobs of one priority.

use std::collections::BTreeMap;

use super::time::Time;
use super::{SharedMap, SharedSet};

/// Owners that are remembered at most: without TLS anybody can make up names. Those who hold ranks always are.
const MOST: usize = 10_000;

/// A rank counts as if it had been held for so many seconds from the moment that a ring has it: otherwise whoever is the
/// first of two equals would get everything that becomes free at one time.
const AHEAD: f64 = 600.0;

/// Steps of a [`Level`] in each doubling of what was used: owners within 4 % of each other are equal, so that their jobs come
/// in order of age.
const STEPS_PER_DOUBLING: f64 = 16.0;

/// How fast use fades, and what owners are entitled to.
#[derive(Debug, Clone, PartialEq)]
pub struct Fairness {
    /// After so many milliseconds, use counts half.
    pub half_life: i64,
    /// By owner; others have 1. Who has 2 may use twice as much before others come first.
    pub weights: BTreeMap<String, f64>,
}

impl Default for Fairness {
    fn default() -> Self {
        Self { half_life: 86_400_000, weights: BTreeMap::new() }
    }
}

/// What one owner has used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Account {
    /// Rank-seconds, faded, as of `as_of`.
    pub used: f64,
    /// Until when they are counted.
    pub as_of: Time,
    /// Ranks that the rings of its jobs hold, and workers that prepare to join them. Not stored: the rings say it.
    pub held: u32,
}

impl Account {
    /// The account as of a later time.
    pub fn at(self, now: Time, half_life: i64) -> Self {
        if now <= self.as_of {
            return self;
        }
        let seconds = now.0.saturating_sub(self.as_of.0) as f64 / 1000.0;
        let half_life = half_life as f64 / 1000.0;
        let faded = (-seconds / half_life).exp2();
        // What is used now fades from now on: the integral of both over the time that went by.
        let held = f64::from(self.held) * half_life / std::f64::consts::LN_2 * (1.0 - faded);
        Self { used: self.used * faded + held, as_of: now, ..self }
    }

    /// Where its owner stands. Use of all owners fades alike, so the level of one who holds nothing stays right as time goes
    /// by.
    fn level(self, weight: f64, half_life: i64) -> Level {
        let counted = (self.used + f64::from(self.held) * AHEAD) / weight;
        if counted <= 0.0 {
            return Level::default();
        }
        let level = counted.log2() + self.as_of.0 as f64 / half_life as f64;
        Level((level * STEPS_PER_DOUBLING).floor() as i64)
    }
}

/// How much an owner has used for their weight, on a scale on which one is compared with another. Lower comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(i64);

impl Default for Level {
    /// Of whoever has used nothing.
    fn default() -> Self {
        Self(i64::MIN)
    }
}

/// The accounts of owners.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Shares {
    accounts: SharedMap<String, Account>,
    /// Owners whose account is not stored as it is, or is there no more.
    changed: SharedSet<String>,
}

impl Shares {
    /// As a store gave them back, in any order. Rings that are known already count.
    pub(super) fn recover(&mut self, stored: Vec<(String, Account)>) {
        for (owner, account) in stored {
            let held = self.held(&owner);
            self.accounts.insert_mut(owner, Account { held, ..account });
        }
        self.changed = SharedSet::default();
    }

    pub(super) fn level(&self, owner: &str, fairness: &Fairness) -> Level {
        let weight = fairness.weights.get(owner).copied().unwrap_or(1.0);
        self.accounts.get(owner).map_or_else(Level::default, |one| one.level(weight, fairness.half_life))
    }

    /// Ranks that an owner holds.
    pub(super) fn held(&self, owner: &str) -> u32 {
        self.accounts.get(owner).map_or(0, |account| account.held)
    }

    /// An owner has a rank more, or one less. Returns the owners that were forgotten for it.
    pub(super) fn hold(&mut self, owner: &str, takes: bool, now: Time, half_life: i64) -> Vec<String> {
        let is_known = self.accounts.contains_key(owner);
        let forgotten = if is_known { Vec::new() } else { self.make_room(now, half_life) };
        let account =
            self.accounts.get(owner).copied().unwrap_or(Account { as_of: now, ..Account::default() });
        let mut account = account.at(now, half_life);
        account.held = if takes { account.held + 1 } else { account.held.saturating_sub(1) };
        self.put(owner.to_owned(), Some(account));
        forgotten
    }

    /// Counts what was used until now by those who hold ranks. Who they are.
    pub(super) fn count(&mut self, now: Time, half_life: i64) -> Vec<String> {
        let holders: Vec<String> = self.holders().into_keys().map(str::to_owned).collect();
        for owner in &holders {
            let account = self.get(owner).map(|account| account.at(now, half_life));
            self.put(owner.clone(), account);
        }
        holders
    }

    /// What is to be stored: the accounts that changed; none: forget it.
    pub(super) fn take_changed(&mut self) -> Vec<(String, Option<Account>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.iter().map(|owner| (owner.clone(), self.accounts.get(owner).copied())).collect()
    }

    pub(super) fn get(&self, owner: &str) -> Option<Account> {
        self.accounts.get(owner).copied()
    }

    /// Ranks by the owners who hold any.
    pub(super) fn holders(&self) -> BTreeMap<&str, u32> {
        let holders = self.accounts.iter().filter(|(_, account)| account.held > 0);
        holders.map(|(owner, account)| (owner.as_str(), account.held)).collect()
    }

    /// Forgets a tenth of the owners where there are too many: those who hold nothing and have used least.
    fn make_room(&mut self, now: Time, half_life: i64) -> Vec<String> {
        if self.accounts.size() < MOST {
            return Vec::new();
        }
        let idle = self.accounts.iter().filter(|(_, account)| account.held == 0);
        let mut idle: Vec<(f64, String)> =
            idle.map(|(owner, account)| (account.at(now, half_life).used, owner.clone())).collect();
        idle.sort_by(|one, other| one.0.total_cmp(&other.0));
        let forgotten: Vec<String> = idle.into_iter().take(MOST / 10).map(|(_, owner)| owner).collect();
        forgotten.iter().for_each(|owner| self.put(owner.clone(), None));
        forgotten
    }

    fn put(&mut self, owner: String, account: Option<Account>) {
        match account {
            Some(account) => self.accounts.insert_mut(owner.clone(), account),
            None => drop(self.accounts.remove_mut(&owner)),
        }
        self.changed.insert_mut(owner);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HALF_LIFE: i64 = 1_000_000;

    fn account(used: f64, held: u32) -> Account {
        Account { used, as_of: Time(0), held }
    }

    #[test]
    fn use_fades_by_half_in_a_half_life_and_ranks_count_by_the_second() {
        assert_eq!(account(8.0, 0).at(Time(HALF_LIFE), HALF_LIFE).used, 4.0);
        // A second is short beside the half-life of 1000.
        let used = account(0.0, 3).at(Time(1000), HALF_LIFE).used;
        assert!((2.998..3.0).contains(&used), "{used}");
        // Who holds one rank for ever comes to the half-life divided by ln 2.
        let used = account(0.0, 1).at(Time(100 * HALF_LIFE), HALF_LIFE).used;
        assert!((used - 1000.0 / std::f64::consts::LN_2).abs() < 1e-6, "{used}");
        // Time that goes back takes nothing away.
        assert_eq!(Account { as_of: Time(9), ..account(8.0, 2) }.at(Time(5), HALF_LIFE).used, 8.0);
    }

    proptest! {
        #[test]
        fn how_often_it_is_counted_changes_nothing(
            used in 0.0..1e6, held in 0u32..100, cuts in prop::collection::vec(1i64..5_000_000, 1..20),
        ) {
            let mut counted = account(used, held);
            let mut now = 0;
            for cut in cuts {
                now += cut;
                counted = counted.at(Time(now), HALF_LIFE);
            }
            let at_once = account(used, held).at(Time(now), HALF_LIFE).used;
            prop_assert!((counted.used - at_once).abs() <= 1e-9 * at_once.max(1.0), "{} {at_once}", counted.used);
        }

        #[test]
        fn the_order_of_those_who_hold_nothing_stays(
            one in 1e-3..1e9, other in 1e-3..1e9, later in 0i64..1_000_000_000, weight in 0.01..100.0,
        ) {
            let level = |used: f64, weight| account(used, 0).level(weight, HALF_LIFE);
            let later = |used: f64, weight| account(used, 0).at(Time(later), HALF_LIFE).level(weight, HALF_LIFE);
            // By one step at most, where a rounding falls on the other side.
            prop_assert!((level(one, 1.0).0 - later(one, 1.0).0).abs() <= 1);
            if one > 1.1 * other {
                prop_assert!(level(one, 1.0) > level(other, 1.0) && later(one, 1.0) > later(other, 1.0));
                // Twice as much with twice the weight is the same.
                prop_assert!(level(one * weight, weight) > level(other * weight, weight));
            }
        }
    }

    #[test]
    fn who_has_used_nothing_comes_first_and_ranks_count_ahead() {
        let level = |used, held| account(used, held).level(1.0, HALF_LIFE);
        assert_eq!(level(0.0, 0), Level::default());
        assert!(level(0.0, 0) < level(0.001, 0) && level(0.0, 1) < level(0.0, 2));
        assert_eq!(level(AHEAD, 0), level(0.0, 1));
    }

    #[test]
    fn no_more_owners_are_remembered_than_may_be_and_those_who_hold_ranks_stay() {
        let mut shares = Shares::default();
        for number in 0..MOST {
            shares.hold(&format!("{number}"), true, Time(0), HALF_LIFE);
            if number > 0 {
                shares.hold(&format!("{number}"), false, Time(number as i64), HALF_LIFE);
            }
        }
        assert_eq!(shares.take_changed().len(), MOST);
        shares.hold("another", true, Time(9), HALF_LIFE);
        assert_eq!(shares.accounts.size(), MOST - MOST / 10 + 1);
        assert_eq!((shares.held("0"), shares.held("another"), shares.held("1")), (1, 1, 0));
        let changed = shares.take_changed();
        assert_eq!(changed.iter().filter(|(_, account)| account.is_none()).count(), MOST / 10);
        assert_eq!(shares.count(Time(10), HALF_LIFE), ["0", "another"]);
    }
}
