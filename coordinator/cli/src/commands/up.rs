//! `ringtune up`: a coordinator and workers on this machine until Ctrl-C.

use serde::Serialize;
use tokio::sync::mpsc;

use super::{plural, reach::blocking};
use crate::{
    client::CoordinatorUrl,
    cluster::{ClusterPlan, KeptFolder, KeptRun, LocalCluster, NOTES, Ports},
    credentials::{Environment, Places},
    error::Error,
    interrupt::Interrupts,
    output::{Output, remark},
    run_arguments::UpArguments,
};

#[derive(Serialize)]
struct UpObject {
    r#type: &'static str,
    coordinator: String,
    http: String,
    workers: Vec<WorkerAddress>,
}

#[derive(Serialize)]
struct WorkerAddress {
    worker_id: String,
    grpc: String,
    http: String,
}

/// Starts everything, and again what ends by itself, until Ctrl-C.
pub(super) async fn up(arguments: UpArguments, interrupts: &Interrupts) -> Result<(), Error> {
    let output = Output::of_work(arguments.output.output);
    let folder = KeptFolder::open()?;
    KeptRun::remark_of_all(&KeptRun::settled()).iter().for_each(|text| remark(text));
    let plan =
        ClusterPlan { folder: folder.path().to_owned(), workers: arguments.workers, ports: Ports::Default };
    remark(&format!(
        "starting a coordinator and {} {}; state and logs in {}",
        plan.workers,
        plural(plan.workers, "worker"),
        plan.folder.display()
    ));
    let mut cluster = tokio::select! {
        cluster = LocalCluster::start(&plan) => cluster?,
        () = interrupts.first() => return Ok(()),
    };
    let outcome = stay_up(&mut cluster, output, interrupts).await;
    remark("stopping");
    cluster.stop().await;
    outcome
}

async fn stay_up(cluster: &mut LocalCluster, output: Output, interrupts: &Interrupts) -> Result<(), Error> {
    let client = cluster.client()?;
    tokio::select! {
        joined = cluster.wait_for_workers(&client, |_| ()) => joined?,
        () = interrupts.first() => return Ok(()),
    }
    let coordinator = cluster.coordinator();
    let object = UpObject {
        r#type: "up",
        coordinator: format!("http://{}", coordinator.grpc),
        http: format!("http://{}", coordinator.http),
        workers: cluster
            .workers()
            .map(|worker| WorkerAddress {
                worker_id: worker.id.clone(),
                grpc: worker.grpc.clone(),
                http: worker.http.clone(),
            })
            .collect(),
    };
    let mut text =
        format!("coordinator {}  page {}/  metrics {}/metrics", object.coordinator, object.http, object.http);
    for worker in &object.workers {
        text.push_str(&format!("\nworker      {}  metrics http://{}/metrics", worker.grpc, worker.http));
    }
    output.data(&text, &object)?;
    if !coordinator.grpc.ends_with(":7070") {
        remark(&format!("the default port is taken: export RINGTUNE_COORDINATOR={}", object.coordinator));
    } else if let Some(other) = login_elsewhere().await {
        remark(&format!(
            "you are logged in at {other}, which commands ask: export RINGTUNE_COORDINATOR={}",
            object.coordinator
        ));
    }
    remark("give it a job with `ringtune submit --watch JOB.toml`; Ctrl-C stops it");
    let (notes, mut said) = mpsc::channel(NOTES);
    let mut kept = std::pin::pin!(cluster.keep_up(notes));
    loop {
        tokio::select! {
            () = interrupts.first() => return Ok(()),
            Some(note) = said.recv() => remark(&note),
            error = &mut kept => return Err(error.into()),
        }
    }
}

/// The coordinator that commands ask instead of this one, because of a login.
async fn login_elsewhere() -> Option<CoordinatorUrl> {
    // Whoever has no place for logins has none.
    blocking(|| Places::of(&Environment::read())?.default_coordinator()).await.ok().flatten()
}
