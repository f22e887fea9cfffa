//! Every method, for every role and for none.

use super::*;
use crate::access::table::{GRPC, HTTP, grpc_row};

const NODE: &str = "0193f2a4-5b6c-7d8e-9f00-112233445566";

fn known(role: Role) -> Known {
    let name = if role == Role::Worker { NODE } else { "ada" };
    let proof = Proof::Certificate("0a".to_owned());
    Known { cluster: Cluster::random(), role, name: name.to_owned(), proof }
}

fn by_token(role: Role) -> Caller {
    Caller::Known(Known { proof: Proof::Token(TokenId::from([1; 8]), Time(1)), ..known(role) })
}

#[test]
fn every_reason_is_counted_from_the_start() {
    assert_eq!(Reason::ALL.map(Reason::as_str), crate::metrics::DENIALS);
}

/// Who may call it: e everybody, r whoever may renew, w worker, s submitter, o observer, a admin.
const MAY: [(&str, &str); 57] = [
    ("Join", "ewsoa"),
    ("RenewCertificate", "wsoa"),
    ("WhoAmI", "wsoa"),
    ("CreateToken", "a"),
    ("ListTokens", "a"),
    ("RevokeToken", "a"),
    ("ListCertificates", "oa"),
    ("RevokeCertificate", "a"),
    ("GetAuthority", "oa"),
    ("RotateAuthority", "a"),
    ("RetireAuthority", "a"),
    ("CreateJob", "sa"),
    ("CreateSweep", "sa"),
    ("GetSweep", "soa"),
    ("CancelSweep", "sa"),
    ("VerifyJob", "sa"),
    ("CancelJob", "sa"),
    ("OrderJob", "sa"),
    ("PauseJob", "sa"),
    ("ResumeJob", "sa"),
    ("DeleteJob", "sa"),
    ("GetJob", "soa"),
    ("ListJobs", "soa"),
    ("WatchJob", "soa"),
    ("WatchJobs", "soa"),
    ("ListSteps", "wsoa"),
    ("ListEvents", "soa"),
    ("ListWorkers", "soa"),
    ("GetWorker", "soa"),
    ("GetCluster", "soa"),
    ("GetLimits", "soa"),
    ("DrainWorker", "a"),
    ("UndrainWorker", "a"),
    ("Upload", "wsa"),
    ("Download", "wsoa"),
    ("ListArtifacts", "wsoa"),
    ("DeleteArtifact", "wsa"),
    ("Session", "w"),
    ("Check", "ewsoa"),
    ("Watch", "ewsoa"),
    ("ServerReflectionInfo", "wsoa"),
    ("ServerReflectionInfo", "wsoa"),
    ("/", "ewsoa"),
    ("/assets/{name}", "ewsoa"),
    ("/healthz", "ewsoa"),
    ("/readyz", "ewsoa"),
    ("/metrics", "oa"),
    ("/metrics/workers/{worker}", "oa"),
    ("/sd/workers", "oa"),
    ("/api/session", "ewsoa"),
    ("/login", "ewsoa"),
    ("/logout", "ewsoa"),
    // Here the table says only that something is called; the gate leaves it to the calls.
    ("/api/{service}/{method}", "wsoa"),
    ("/api/events", "wsoa"),
    ("/api/files/{job}", "wsoa"),
    ("/api/files/{job}/{name}", "wsoa"),
    ("/api/contents/{sha256}", "wsoa"),
];

#[test]
fn each_method_is_for_the_roles_that_it_is_for() {
    let rows: Vec<&Row> = GRPC.iter().chain(&HTTP).collect();
    assert_eq!(rows.iter().map(|row| row.name()).collect::<Vec<_>>(), MAY.map(|(name, _)| name));
    for (row, (name, may)) in rows.into_iter().zip(MAY) {
        assert_eq!(decide(Some(row), &Caller::Open), Ok(()), "{name}");
        let nobody = decide(Some(row), &Caller::Anonymous).map_err(|denied| denied.reason);
        assert_eq!(nobody, if may.contains('e') { Ok(()) } else { Err(Reason::NoIdentity) }, "{name}");
        for role in Role::ALL {
            let letter = role.as_str().chars().next().unwrap();
            let expected = if may.contains(letter) { Ok(()) } else { Err(Reason::Role) };
            let given = decide(Some(row), &Caller::Known(known(role))).map_err(|denied| denied.reason);
            assert_eq!(given, expected, "{name} as {role}");
            let given = decide(Some(row), &by_token(role)).map_err(|denied| denied.reason);
            let expected = if name == "RenewCertificate" { Err(Reason::Role) } else { expected };
            assert_eq!(given, expected, "{name} as {role} by a token");
            assert_eq!(row.is_for(role), may.contains(letter), "{name} as {role}");
        }
        let refused = decide(Some(row), &Caller::Refused("it was revoked".to_owned())).unwrap_err();
        assert_eq!((refused.reason, refused.text.as_str()), (Reason::Certificate, "it was revoked"));
    }
}

#[test]
fn what_is_not_in_the_table_is_for_nobody() {
    let reason = |caller| decide(None, &caller).map_err(|denied| denied.reason);
    assert_eq!(reason(Caller::Anonymous), Err(Reason::NoIdentity));
    assert_eq!(reason(Caller::Known(known(Role::Admin))), Err(Reason::Method));
    assert_eq!(reason(Caller::Open), Ok(()), "tonic says that there is no such method");
}

#[test]
fn a_refusal_says_what_is_missing_and_who_one_is() {
    let row = grpc_row("/ringtune.v1.JobService/CancelJob");
    let text = |caller: &Caller| decide(row, caller).unwrap_err().text;
    let observer = text(&Caller::Known(known(Role::Observer)));
    assert_eq!(observer, "CancelJob needs the role submitter or admin; you are observer ada");
    let nobody = text(&Caller::Anonymous);
    assert!(
        nobody.starts_with("CancelJob is not for everybody") && nobody.contains("ringtune login"),
        "{nobody}"
    );
    assert_eq!(either(&[Role::Admin]), "admin");
    assert_eq!(either(&[Role::Submitter, Role::Observer, Role::Admin]), "submitter, observer or admin");
}

fn call(caller: Caller, own: bool) -> Call {
    Call { own, ..Call::new(caller, ([127, 0, 0, 1], 1).into(), None) }
}

#[test]
fn submitters_reach_their_own_jobs_and_workers_those_that_they_have_a_place_in() {
    let of = |role| call(Caller::Known(known(role)), true);
    assert_eq!(of(Role::Submitter).reach(), Reach::Owner("ada"));
    assert_eq!(of(Role::Worker).reach(), Reach::Worker(NODE.parse().unwrap()));
    for call in [of(Role::Observer), of(Role::Admin), call(Caller::Open, true)] {
        assert_eq!(call.reach(), Reach::All);
        assert!(call.sees("bob") && call.sees(""));
    }
    for nothing in [call(Caller::Known(known(Role::Submitter)), false), call(Caller::Anonymous, true)] {
        assert_eq!(nothing.reach(), Reach::Nothing);
        assert!(!nothing.sees("ada") && !nothing.sees(""));
    }
    let ada = of(Role::Submitter);
    assert!(ada.sees("ada") && !ada.sees("bob") && !ada.sees(""));
}

#[test]
fn a_new_job_is_its_callers_unless_an_admin_says_otherwise() {
    let owner = |caller, given: &str| call(caller, true).owner(given.to_owned());
    let (submitter, admin) = (Caller::Known(known(Role::Submitter)), Caller::Known(known(Role::Admin)));
    for caller in [&submitter, &admin] {
        assert_eq!(owner(caller.clone(), ""), Ok("ada".to_owned()));
        assert_eq!(owner(caller.clone(), "ada"), Ok("ada".to_owned()));
    }
    assert_eq!(owner(admin, "bob"), Ok("bob".to_owned()));
    let denied = owner(submitter, "bob").unwrap_err();
    assert_eq!(denied.reason, Reason::Owner);
    assert!(denied.text.starts_with("queue.owner: got \"bob\"; allowed: \"ada\""), "{denied}");
    assert_eq!(owner(Caller::Open, ""), Ok(String::new()));
    assert_eq!(owner(Caller::Open, "bob"), Ok("bob".to_owned()));
}

#[test]
fn who_sees_only_their_own_jobs_asks_about_nobody_else() {
    let about = |caller: Caller, given: &str| call(caller, true).asks_about(given.to_owned());
    let [submitter, observer, admin] =
        [Role::Submitter, Role::Observer, Role::Admin].map(|role| Caller::Known(known(role)));
    for caller in [&submitter, &observer, &admin] {
        assert_eq!(about(caller.clone(), ""), Ok(("ada".to_owned(), true)));
    }
    for caller in [&observer, &admin] {
        assert_eq!(about(caller.clone(), "bob"), Ok(("bob".to_owned(), false)));
    }
    let denied = about(submitter.clone(), "bob").unwrap_err();
    assert!(denied.text.starts_with("owner: got \"bob\"; allowed: \"ada\""), "{denied}");
    let highest = |caller| call(caller, true).highest_priority(99);
    assert_eq!([submitter, admin, Caller::Open].map(highest), [99, 1000, 1000]);
}

#[test]
fn requests_of_different_callers_have_different_names() {
    let named = |role, id: &str| call(Caller::Known(known(role)), true).own_request(id.to_owned());
    assert_ne!(named(Role::Submitter, "1"), named(Role::Admin, "1"));
    assert_eq!(named(Role::Submitter, ""), "");
    assert_eq!(call(Caller::Open, true).own_request("1".to_owned()), "1");
}

#[test]
fn reasons_are_labels_of_their_own() {
    let labels: std::collections::BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(labels.len(), Reason::ALL.len());
}
