use super::*;

#[test]
fn steps_that_are_not_given_are_all_that_are_stored() {
    let job = JobId::new();
    let check = |given| check_steps(job, given, Some((11, 20)));
    assert_eq!(check((0, 0)), Ok((11, 20)));
    assert_eq!(check((15, 0)), Ok((15, 20)));
    assert_eq!(check((0, 15)), Ok((11, 15)));
    assert_eq!(check((12, 12)), Ok((12, 12)));
}

#[test]
fn steps_that_never_were_are_refused_by_their_field() {
    let job = JobId::new();
    let refused = |given, stored| check_steps(job, given, stored).unwrap_err();
    for (given, field, got) in [
        ((10, 12), "first_step", "got 10;"),
        ((21, 0), "first_step", "got 21;"),
        ((12, 21), "last_step", "got 21;"),
        ((0, 3), "last_step", "got 3;"),
        ((14, 13), "first_step", "got 14, which is after last_step, 13;"),
    ] {
        let error = refused(given, Some((11, 20)));
        assert_eq!(error.field, field, "{given:?}");
        assert!(error.problem.starts_with(got), "{}", error.problem);
        let allowed = format!("allowed: 11 to 20, the steps that are stored of job {job}");
        assert!(error.problem.ends_with(&allowed), "{}", error.problem);
    }
    // No step at all; or, resumed from a checkpoint, none of its own yet.
    for stored in [None, Some((11, 10))] {
        let error = refused((0, 0), stored);
        assert_eq!(error.field, "job_id");
        assert!(error.problem.contains("no step yet"), "{}", error.problem);
    }
}

#[test]
fn a_request_is_the_same_only_with_the_same_job_and_steps() {
    let job = JobId::new();
    let key = |job, steps| request_key(&Call::nobodys(), "mine".to_owned(), job, steps).unwrap().unwrap();
    assert_eq!(key(job, (1, 2)), key(job, (1, 2)));
    assert_ne!(key(job, (1, 2)), key(job, (1, 3)));
    assert_ne!(key(job, (1, 2)), key(JobId::new(), (1, 2)));
    assert_eq!(request_key(&Call::nobodys(), String::new(), job, (1, 2)).unwrap(), None);
    assert_eq!(request_key(&Call::nobodys(), "x".repeat(129), job, (1, 2)).unwrap_err().field, "request_id");
}
