use std::{fs::File, os::fd::OwnedFd, time::Duration};

use ringtune_security::Handed;
use tokio::time::timeout;

use super::*;

fn connected() -> (Sending, Receiving) {
    let (sending, Offer { memory, freed }) = Sending::make().unwrap();
    let receiving = Receiving::of(&Handed::from(vec![memory, freed])).unwrap().unwrap();
    (sending, receiving)
}

fn payload(number: usize) -> Vec<u8> {
    vec![number as u8; LEAST_BYTES + number]
}

#[tokio::test]
async fn what_is_put_is_taken_as_it_was_and_the_first_free_slot_is_used_again() {
    let (mut sending, mut receiving) = connected();
    let (first, second) = (sending.put(&payload(1)).await.unwrap(), sending.put(&payload(2)).await.unwrap());
    assert_eq!((first.number, second.number), (0, 1));
    let (one, two) = (receiving.take(first).unwrap(), receiving.take(second).unwrap());
    assert!(*one == payload(1) && *two == payload(2));
    let again = one.clone();
    drop(one);
    // It is still used elsewhere.
    assert_eq!(sending.put(&payload(3)).await.unwrap().number, 2);
    drop(again);
    assert_eq!(sending.put(&payload(4)).await.unwrap().number, 0);
    // Payloads in flight outlive both ends.
    drop((sending, receiving));
    assert_eq!(*two, payload(2));
}

#[tokio::test]
async fn a_receiver_that_keeps_what_came_leaves_slots_to_the_sender() {
    let (mut sending, mut receiving) = connected();
    let mut kept = Vec::new();
    for number in 0..100 {
        let slot = timeout(Duration::from_secs(20), sending.put(&payload(number))).await.unwrap().unwrap();
        kept.push(receiving.take(slot).unwrap());
    }
    assert!(kept.iter().enumerate().all(|(number, bytes)| **bytes == payload(number)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_waits_for_a_slot_and_never_misses_one() {
    let (mut sending, mut receiving) = connected();
    let (slots, mut sent) = tokio::sync::mpsc::channel(100);
    let taking = ringtune_shared::tasks::spawn(async move {
        let mut held = Vec::new();
        let mut number = 0;
        while let Some(slot) = sent.recv().await {
            held.push((number, receiving.take(slot).unwrap()));
            number += 1;
            // Now all, now one: also while the sender is about to wait.
            if held.len() == SLOTS || number % 3 == 0 {
                for (number, bytes) in held.drain(..) {
                    assert!(bytes.len() == LEAST_BYTES + number % 200 && bytes[7] == (number % 200) as u8);
                }
            }
        }
        number
    });
    for number in 0..5000 {
        let slot = timeout(Duration::from_secs(20), sending.put(&payload(number % 200))).await.unwrap();
        slots.send(slot.unwrap()).await.unwrap();
    }
    drop(slots);
    assert_eq!(taking.await.unwrap(), 5000);
}

#[tokio::test]
async fn a_sender_without_a_receiver_does_not_wait() {
    let (mut sending, receiving) = connected();
    for number in 0..SLOTS {
        sending.put(&payload(number)).await.unwrap();
    }
    assert!(timeout(Duration::from_millis(20), sending.put(&payload(9))).await.is_err());
    drop(receiving);
    let error = timeout(Duration::from_secs(20), sending.put(&payload(9))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn slots_that_are_none_or_not_taken_are_refused() {
    let (mut sending, mut receiving) = connected();
    let slot = sending.put(&payload(1)).await.unwrap();
    for wrong in [
        RingSlot { number: SLOTS as u32, ..slot },
        RingSlot { number: u32::MAX, ..slot },
        RingSlot { bytes: 0, ..slot },
        RingSlot { bytes: SLOT_BYTES as u32 + 1, ..slot },
    ] {
        assert!(matches!(receiving.take(wrong), Err(Unusable::NoSlot { .. })), "{wrong:?}");
    }
    assert!(matches!(receiving.take(RingSlot { number: 1, ..slot }), Err(Unusable::Taken(1))));
    let held = receiving.take(slot).unwrap();
    assert!(matches!(receiving.take(slot), Err(Unusable::Taken(0))));
    drop(held);
    assert!(matches!(receiving.take(slot), Err(Unusable::Taken(0))));
}

#[tokio::test]
async fn other_files_are_no_memory() {
    let (_sending, offer) = Sending::make().unwrap();
    let file = |bytes: u64| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        OwnedFd::from(file)
    };
    let whole = File::from(offer.memory.try_clone().unwrap()).metadata().unwrap().len();
    let pipe = || offer.freed.try_clone().unwrap();
    assert!(Receiving::of(&Handed::default()).unwrap().is_none());
    assert!(Receiving::of(&Handed::from(vec![pipe()])).unwrap().is_none());
    // A shorter file, a pipe, and a file that could be shrunk.
    for wrong in [file(whole - 1), pipe(), file(whole)] {
        let refused = Receiving::of(&Handed::from(vec![wrong, pipe()]));
        assert!(matches!(refused, Err(Unusable::Memory(_))), "{refused:?}");
    }
    // The right one cannot be shrunk.
    assert!(File::from(offer.memory).set_len(10).is_err());
}
