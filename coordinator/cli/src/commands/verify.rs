//! `ringtune verify`: steps of a job are computed again, and the command says whether they are the same.

use ringtune_proto::v1::{self, JobReason, JobState};
use ringtune_shared::trace::TraceContext;
use uuid::Uuid;

use super::{
    follow::{Follow, OnInterrupt, job_id, steps},
    reach::client_of,
    resolve, title,
};
use crate::{
    arguments::VerifyArguments,
    client::{Client, ClientError},
    error::Error,
    interrupt::Interrupts,
    objects::JobObject,
    output::{Output, remark},
    traces::Traces,
};

/// Asks for a verification, follows it to its end, and prints what it found.
pub(super) async fn verify(arguments: VerifyArguments, interrupts: &Interrupts) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let traces = Traces::of_environment();
    let (mut span, trace) = traces.begin("verify");
    let asked = Box::pin(ask(arguments, trace)).await;
    match &asked {
        Ok((_, job)) => span.set("job", job.job_id.clone()),
        Err(_) => span.fail(),
    }
    drop(span);
    traces.finish().await;
    let (client, job) = asked?;
    let id = job_id(&job)?;
    output.json(&JobObject::from(&job))?;
    remark(&format!("job {id}: {}", title(&job)));
    let follow = Follow {
        client: &client,
        job_id: id,
        steps: steps(&job),
        output,
        on_interrupt: OnInterrupt::Detach,
        cluster: None,
        keeper: None,
    };
    let outcome = follow.until_the_end(interrupts).await?;
    let ended = client.get_job(id).await?;
    let is_verdict = ended.state() == JobState::Succeeded || ended.reason_code() == JobReason::Differs;
    if output.is_json() || is_verdict {
        output.data(&ended.state_reason, &JobObject::from(&ended))?;
    }
    match ended.reason_code() {
        JobReason::Differs => Err(Error::JobEnded(format!("verification {id} found a step that differs"))),
        _ => outcome.into_result(id),
    }
}

/// Has the verification made that the arguments mean.
async fn ask(arguments: VerifyArguments, trace: Option<TraceContext>) -> Result<(Client, v1::Job), Error> {
    let client = client_of(&arguments.ask.coordinator).await?.within(trace);
    let request_id = arguments.request_id.unwrap_or_else(|| Uuid::new_v4().to_string());
    let wanted = v1::VerifyJobRequest {
        job_id: resolve::job(&client, &arguments.job).await?.to_string(),
        first_step: arguments.steps.map_or(0, |steps| steps.first),
        last_step: arguments.steps.map_or(0, |steps| steps.last),
        request_id: request_id.clone(),
    };
    let asked = client.verify_job(wanted).await;
    let job = asked.map_err(|source| match source {
        ClientError::NoAnswer { .. } | ClientError::Unreachable { .. } => {
            Error::MaybeSubmitted { source, request_id }
        }
        refused => refused.into(),
    })?;
    Ok((client, job))
}
