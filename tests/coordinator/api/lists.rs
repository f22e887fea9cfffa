//! Lists: filtered, ordered, page by page.

use ringtune_proto::v1::{self, JobState, job_event::Event};
use tonic::Status;

use crate::{
    coordinator::Coordinator,
    jobs::STEPS,
    queue::{create, queue},
    requests::fields,
    worker::{Worker, hello},
};

/// The names of all jobs that a list has, over as many pages as there are.
async fn names(coordinator: &Coordinator, request: v1::ListJobsRequest) -> Result<String, Status> {
    let mut names = String::new();
    let mut request = v1::ListJobsRequest { page_size: 2, ..request };
    loop {
        let page = coordinator.jobs().list_jobs(request.clone()).await?.into_inner();
        page.jobs.iter().for_each(|job| names.push_str(&job.name));
        if page.next_page_token.is_empty() {
            return Ok(names);
        }
        request.page_token = page.next_page_token;
    }
}

async fn listed(coordinator: &Coordinator, filter: &str, order_by: &str) -> String {
    let (filter, order_by) = (filter.to_owned(), order_by.to_owned());
    names(coordinator, v1::ListJobsRequest { filter, order_by, ..Default::default() }).await.unwrap()
}

/// Jobs e, a, d, b, c in the order of their creation; c is cancelled.
async fn five_jobs(coordinator: &Coordinator) -> Vec<v1::Job> {
    let mut jobs = Vec::new();
    for (name, owner, priority, labels) in [
        ("e", "ada", 0, &[("team", "red")][..]),
        ("a", "bob", 5, &[("team", "red"), ("x/y.z", "a \"b\"")]),
        ("d", "ada", 5, &[("team", "blue")]),
        ("b", "", 1000, &[]),
        ("c", "ada", 5, &[("team", "red")]),
    ] {
        jobs.push(create(coordinator, name, queue(owner, priority, labels), "").await.unwrap());
    }
    coordinator.cancel(&jobs[4].job_id).await.unwrap();
    jobs
}

#[tokio::test]
async fn jobs_are_filtered_and_ordered() {
    let coordinator = Coordinator::fresh().await;
    five_jobs(&coordinator).await;
    for (filter, order_by, wanted) in [
        ("", "", "cbdae"),
        ("", "create_time", "eadbc"),
        ("", "name", "abcde"),
        ("", "name desc", "edcba"),
        ("", "priority", "eadcb"),
        ("", "priority desc", "badce"),
        ("owner=ada", "", "cde"),
        ("owner=\"\"", "", "b"),
        ("owner = ada AND labels.team=red", "create_time", "ec"),
        ("labels.team=red,state=queued", "", "ae"),
        ("labels.x/y.z=\"a \\\"b\\\"\"", "", "a"),
        ("priority=5", "name desc", "dca"),
        ("kind=textual_inversion,name=d", "", "d"),
        ("kind=generate", "", ""),
        ("state=paused", "", ""),
        ("labels.team=green", "", ""),
    ] {
        assert_eq!(listed(&coordinator, filter, order_by).await, wanted, "{filter:?} by {order_by:?}");
    }
    let states = vec![JobState::Queued.into(), JobState::Cancelled.into()];
    let request = v1::ListJobsRequest { states, filter: "state=cancelled".to_owned(), ..Default::default() };
    assert_eq!(names(&coordinator, request).await.unwrap(), "c");
    for (filter, order_by, field) in [("priority=-1", "", "filter"), ("", "name asc", "order_by")] {
        let (filter, order_by) = (filter.to_owned(), order_by.to_owned());
        let request = v1::ListJobsRequest { filter, order_by, ..Default::default() };
        let refused = names(&coordinator, request).await.unwrap_err();
        assert_eq!(fields(&refused), [field]);
        assert!(refused.message().contains("allowed: "), "{refused:?}");
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn a_page_token_is_good_for_its_own_list_alone() {
    let coordinator = Coordinator::fresh().await;
    let jobs = five_jobs(&coordinator).await;
    let first = v1::ListJobsRequest { page_size: 1, ..Default::default() };
    let page = coordinator.jobs().list_jobs(first.clone()).await.unwrap().into_inner();
    let next = v1::ListJobsRequest { page_token: page.next_page_token.clone(), ..first };
    for other in [
        v1::ListJobsRequest { filter: "owner=ada".to_owned(), ..next.clone() },
        v1::ListJobsRequest { order_by: "name".to_owned(), ..next.clone() },
        v1::ListJobsRequest { states: vec![JobState::Queued.into()], ..next.clone() },
    ] {
        let refused = coordinator.jobs().list_jobs(other).await.unwrap_err();
        assert_eq!(fields(&refused), ["page_token"]);
        assert!(refused.message().contains("another view of this list"), "{refused:?}");
    }
    // The same view, spelled differently.
    let same = v1::ListJobsRequest { page_size: 3, order_by: " create_time  desc".to_owned(), ..next };
    assert_eq!(names(&coordinator, same).await.unwrap(), "bdae");

    let page_token = page.next_page_token;
    let workers = v1::ListWorkersRequest { page_token: page_token.clone(), ..Default::default() };
    let refused = coordinator.cluster().list_workers(workers).await.unwrap_err();
    assert_eq!(fields(&refused), ["page_token"]);
    assert!(refused.message().contains("it is of a list of jobs"), "{refused:?}");
    let job_id = jobs[0].job_id.clone();
    let steps =
        v1::ListStepsRequest { job_id: job_id.clone(), page_token: page_token.clone(), ..Default::default() };
    assert_eq!(fields(&coordinator.jobs().list_steps(steps).await.unwrap_err()), ["page_token"]);
    let events = v1::ListEventsRequest {
        job_id: job_id.clone(),
        page_token: page_token.clone(),
        ..Default::default()
    };
    assert_eq!(fields(&coordinator.jobs().list_events(events).await.unwrap_err()), ["page_token"]);
    let artifacts = v1::ListArtifactsRequest { job_id, page_token, ..Default::default() };
    assert_eq!(fields(&coordinator.artifacts().list_artifacts(artifacts).await.unwrap_err()), ["page_token"]);
    coordinator.stop().await;
}

#[tokio::test]
async fn workers_are_filtered_and_ordered() {
    let coordinator = Coordinator::fresh().await;
    let mut workers = Vec::new();
    for (number, host) in ["host-c", "host-a", "host-b", "host-a"].into_iter().enumerate() {
        let address = format!("{host}:708{number}");
        workers.push(Worker::open(&coordinator, v1::Hello { address, ..hello(host) }).await.unwrap());
    }
    let job = coordinator.create(1).await;
    let list = async |filter: &str, order_by: &str| {
        let (filter, order_by) = (filter.to_owned(), order_by.to_owned());
        let mut request = v1::ListWorkersRequest { page_size: 3, filter, order_by, ..Default::default() };
        let mut hosts = Vec::new();
        loop {
            let page = coordinator.cluster().list_workers(request.clone()).await?.into_inner();
            hosts.extend(page.workers.into_iter().map(|worker| worker.host_name));
            if page.next_page_token.is_empty() {
                return Ok::<_, Status>(hosts.join(" "));
            }
            request.page_token = page.next_page_token;
        }
    };
    assert_eq!(list("", "host_name").await.unwrap(), "host-a host-a host-b host-c");
    assert_eq!(list("", "host_name desc").await.unwrap(), "host-c host-b host-a host-a");
    assert_eq!(list("host_name=host-a", "").await.unwrap(), "host-a host-a");
    let busy = list("state=BUSY", "").await.unwrap();
    assert_eq!(list(&format!("job_id={}", job.job_id), "").await.unwrap(), busy);
    assert_eq!(busy, "host-a");
    let class = workers[0].hello.capabilities.clone().unwrap().numerics_class;
    let of_class = format!("numerics_class=\"{class}\" AND state=idle");
    assert_eq!(list(&of_class, "host_name").await.unwrap(), "host-a host-b host-c");
    assert_eq!(fields(&list("state=queued", "").await.unwrap_err()), ["filter"]);
    assert_eq!(fields(&list("", "name").await.unwrap_err()), ["order_by"]);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_history_is_listed_by_type_and_thinned() {
    let coordinator = Coordinator::fresh().await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let job_id = coordinator.create(1).await.job_id;
    worker.prepare().await;
    worker.finish().await;
    coordinator.end(&job_id).await;
    let list = async |filter: &str, order_by: &str| {
        let (filter, order_by) = (filter.to_owned(), order_by.to_owned());
        let mut request = v1::ListEventsRequest {
            job_id: job_id.clone(),
            page_size: 2,
            filter,
            order_by,
            ..Default::default()
        };
        let mut events = Vec::new();
        loop {
            let page = coordinator.jobs().list_events(request.clone()).await?.into_inner();
            assert!(page.events.len() <= 2);
            events.extend(page.events);
            if page.next_page_token.is_empty() {
                return Ok::<_, Status>(events);
            }
            request.page_token = page.next_page_token;
        }
    };
    let all = list("", "").await.unwrap();
    let watched = coordinator.watch(&job_id, 0).await.rest().await;
    assert_eq!(all.iter().map(|event| event.event.clone().unwrap()).collect::<Vec<_>>(), watched);
    let mut backwards = list("", "sequence desc").await.unwrap();
    backwards.reverse();
    assert_eq!(backwards, all);
    let steps = list("type=step", "").await.unwrap();
    let is_step = |event: &&v1::JobEvent| matches!(event.event, Some(Event::Step(_)));
    assert_eq!(steps, all.iter().filter(is_step).cloned().collect::<Vec<_>>());
    assert_eq!(steps.len() as i64, STEPS);
    let changes = list("type=state_change", "sequence desc").await.unwrap();
    assert!(
        matches!(&changes[0].event, Some(Event::StateChange(change)) if change.to() == JobState::Succeeded)
    );
    let refused = list("type=noise", "").await.unwrap_err();
    assert_eq!(fields(&refused), ["filter"]);
    assert!(refused.message().contains("allowed: state_change, step"), "{refused:?}");
    let later = v1::ListEventsRequest { job_id: job_id.clone(), after_sequence: 2, ..Default::default() };
    assert_eq!(coordinator.jobs().list_events(later).await.unwrap().into_inner().events, all[2..]);

    // Losses fall from step to step, so that of one part the first, the last and no other count.
    let chart =
        |max_points| v1::ListStepsRequest { job_id: job_id.clone(), max_points, ..Default::default() };
    let thin = async |request| {
        let page = coordinator.jobs().list_steps(request).await?.into_inner();
        assert_eq!(page.next_page_token, "");
        Ok::<_, Status>(page.steps.iter().map(|step| step.step).collect::<Vec<_>>())
    };
    assert_eq!(thin(chart(4)).await.unwrap(), [1, STEPS]);
    assert_eq!(thin(chart(8)).await.unwrap(), [1, 2, 3, 4, 5]);
    let later = v1::ListStepsRequest { after_step: 3, ..chart(4) };
    assert_eq!(thin(later).await.unwrap(), [4, 5]);
    assert_eq!(fields(&thin(chart(3)).await.unwrap_err()), ["max_points"]);
    coordinator.stop().await;
}

#[tokio::test]
async fn artifacts_are_filtered_and_ordered() {
    let coordinator = Coordinator::fresh().await;
    let job_id = coordinator.create(1).await.job_id;
    for (name, media_type) in [("b.png", "image/png"), ("c.csv", "text/csv"), ("a.png", "image/png")] {
        let header = v1::UploadHeader {
            job_id: job_id.clone(),
            name: name.to_owned(),
            media_type: media_type.to_owned(),
            ..crate::uploads::header(name.as_bytes())
        };
        coordinator.upload(header, vec![crate::uploads::chunk(name.as_bytes())]).await.unwrap();
    }
    let list = async |filter: &str, order_by: &str| {
        let (filter, order_by) = (filter.to_owned(), order_by.to_owned());
        let mut request = v1::ListArtifactsRequest {
            job_id: job_id.clone(),
            page_size: 1,
            filter,
            order_by,
            ..Default::default()
        };
        let mut names = Vec::new();
        loop {
            let page = coordinator.artifacts().list_artifacts(request.clone()).await?.into_inner();
            names.extend(page.artifacts.into_iter().map(|artifact| artifact.name));
            if page.next_page_token.is_empty() {
                return Ok::<_, Status>(names.join(" "));
            }
            request.page_token = page.next_page_token;
        }
    };
    assert_eq!(list("", "").await.unwrap(), "a.png b.png c.csv");
    assert_eq!(list("", "name desc").await.unwrap(), "c.csv b.png a.png");
    assert_eq!(list("media_type=image/png", "").await.unwrap(), "a.png b.png");
    assert_eq!(list("name=c.csv", "create_time desc").await.unwrap(), "c.csv");
    assert_eq!(fields(&list("size=3", "").await.unwrap_err()), ["filter"]);
    assert_eq!(fields(&list("", "size").await.unwrap_err()), ["order_by"]);
    coordinator.stop().await;
}
