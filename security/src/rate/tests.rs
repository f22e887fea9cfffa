use std::net::{IpAddr, Ipv4Addr};

use governor::clock::FakeRelativeClock;

use super::*;
use crate::identity::Role;
use crate::peer::Caller;

const RATE: u32 = 20;

fn rates() -> (Rates<FakeRelativeClock>, FakeRelativeClock) {
    let clock = FakeRelativeClock::default();
    (Rates::new(RATE as usize, clock.clone()), clock)
}

fn host(number: u32) -> CountedAs {
    CountedAs::of(&Caller::Anonymous, IpAddr::V4(Ipv4Addr::from(number))).unwrap()
}

/// How long each of so many calls waits, in milliseconds; what is refused is not among them.
fn waits(rates: &Rates<FakeRelativeClock>, whose: &CountedAs, calls: u32) -> Vec<u128> {
    (0..calls).filter_map(|_| rates.wait(whose).ok()).map(|wait| wait.as_millis()).collect()
}

#[test]
fn a_burst_goes_at_once_more_wait_for_their_turns_and_the_rest_is_refused() {
    let (rates, clock) = rates();
    let ada = CountedAs::member(Role::Submitter, "ada");
    assert_eq!(waits(&rates, &ada, 200), vec![0; 200]);
    // One each 50 ms, in the order in which they came.
    let turns: Vec<u128> = (1..=100).map(|turn| turn * 50).collect();
    assert_eq!(waits(&rates, &ada, 200), turns);
    let refused = rates.wait(&ada).unwrap_err();
    assert_eq!(refused.retry_after(), Duration::from_secs(5));
    let text = refused.to_string();
    for word in ["submitter ada", "20 a second", "200 at once", "100 more", "again in 5 s"] {
        assert!(text.contains(word), "{text}");
    }
    // In a second there are as many turns again as it lets calls through, and no refused call cost one.
    clock.advance(Duration::from_secs(1));
    let turns: Vec<u128> = (81..=100).map(|turn| turn * 50).collect();
    assert_eq!(waits(&rates, &ada, 200), turns);
    // When all that waited had their turns a call goes at the rate, and after a rest there is a burst again.
    clock.advance(refused.retry_after());
    assert_eq!(waits(&rates, &ada, 2), [50, 100]);
    clock.advance(Duration::from_secs(86_400));
    assert_eq!(waits(&rates, &ada, 201), [vec![0; 200], vec![50]].concat());
}

#[test]
fn nobody_waits_for_another() {
    let (rates, _clock) = rates();
    let ada = CountedAs::member(Role::Submitter, "ada");
    assert_eq!(waits(&rates, &ada, 1000).len(), 300);
    for other in [CountedAs::member(Role::Submitter, "bob"), CountedAs::member(Role::Admin, "ada"), host(1)] {
        assert_eq!(waits(&rates, &other, 200), vec![0; 200], "{other}");
    }
}

#[test]
fn every_rate_that_settings_allow_has_its_burst_and_its_turns() {
    for rate in [0, 1, 7, 1_000_000, usize::MAX] {
        let rates = Rates::new(rate, FakeRelativeClock::default());
        let expected = u32::try_from(rate).unwrap_or(MOST).clamp(1, 1_000_000);
        assert_eq!(rates.per_second, expected);
        let mut waits = Vec::new();
        while let Ok(wait) = rates.wait(&host(1)) {
            waits.push(wait);
            if waits.len() > 200 {
                break;
            }
        }
        if expected < 10 {
            assert_eq!(waits.len() as u32, 15 * expected);
            assert_eq!(waits.iter().filter(|wait| wait.is_zero()).count() as u32, 10 * expected);
            let longest = waits.last().unwrap();
            assert!((4999..=5000).contains(&longest.as_millis()), "{longest:?}");
        }
    }
}

#[test]
fn memory_is_bounded_and_members_are_known_among_any_number_of_strangers() {
    let (rates, clock) = rates();
    for number in 0..CALLERS as u32 {
        assert_eq!(rates.wait(&host(number)), Ok(Duration::ZERO));
    }
    // From here on strangers are one, whoever they are.
    assert_eq!(
        (CALLERS as u32..2 * CALLERS as u32).filter(|number| rates.wait(&host(*number)).is_ok()).count(),
        300
    );
    let refused = rates.wait(&host(7)).unwrap_err().to_string();
    assert!(refused.contains("callers that nobody knows"), "{refused}");
    assert_eq!(rates.limiter.len(), CALLERS + 1);
    let ada = CountedAs::member(Role::Submitter, "ada");
    assert_eq!(rates.wait(&ada), Ok(Duration::ZERO));
    // Whoever is quiet is forgotten; those who have turns to wait for are not.
    clock.advance(SWEEP_EVERY);
    assert_eq!(rates.wait(&host(7)), Ok(Duration::ZERO), "it is told apart again");
    assert_eq!(rates.limiter.len(), 2);
    clock.advance(Duration::from_secs(60));
    assert_eq!(rates.wait(&ada), Ok(Duration::ZERO));
    assert_eq!(rates.limiter.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_its_turn() {
    let rates = CallRates::per_second(1);
    let began = tokio::time::Instant::now();
    for _ in 0..10 {
        rates.turn(&host(1)).await.unwrap();
    }
    assert!(began.elapsed().is_zero());
    // The rates go by the real clock, which hardly moves meanwhile: these wait for 1, 2, 3 and 4 seconds.
    for _ in 0..4 {
        rates.clone().turn(&host(1)).await.unwrap();
    }
    assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
}

#[test]
fn another_rate_counts_from_now_on_and_the_same_one_changes_nothing() {
    let rates = CallRates::per_second(1);
    let ada = CountedAs::member(Role::Submitter, "ada");
    let calls = |rates: &CallRates| (0..100).filter(|_| rates.rates().wait(&ada).is_ok()).count();
    let most = (BURST + PATIENCE) as usize;
    assert!(calls(&rates) >= most);
    rates.set_per_second(1);
    assert!(calls(&rates) < most);
    // Clones are one.
    rates.clone().set_per_second(2);
    assert!(calls(&rates) >= 2 * most);
}
