//! `login`, `logout` and `whoami`: who this user is to a coordinator.

use prost_types::Timestamp;
use ringtune_proto::v1;
use ringtune_security::{Credentials, Csr, JoinToken, Role, Roots};

use super::{
    reach::{Reached, blocking, reach},
    table::facts,
};
use crate::{
    access_arguments::{LoginArguments, LogoutArguments},
    access_objects::{IdentityObject, LoginObject, LogoutObject, role_name},
    client::{Client, CoordinatorUrl},
    common_arguments::AskArguments,
    credentials::{AccessError, Environment, Places, made_of, read_join_token},
    error::Error,
    interrupt::Interrupts,
    output::{Output, remark, size_text, time_text},
};

/// `ringtune login`: a token becomes a certificate.
pub(super) async fn login(arguments: LoginArguments, interrupts: &Interrupts) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let url = arguments.url;
    let environment = Environment::read();

    // 1. What can be wrong here is found before the token is used.
    if !url.is_secure() {
        return Err(Error::Usage(format!(
            "{url} encrypts nothing and asks nobody who they are, so there is no login; if it does speak TLS: \
             ringtune login {}",
            url.secured()
        )));
    }
    let places = Places::of(&environment)?;
    let read = read_join_token(arguments.token_file.as_deref(), &environment);
    let text = tokio::select! {
        text = read => text?,
        () = interrupts.first() => return Err(Error::Interrupted("stopped before the token was used".to_owned())),
    };
    let token: JoinToken = text.parse().map_err(|source| AccessError::Token {
        of: String::new(),
        source,
        hint: "\n  an administrator makes one: ringtune token create --role submitter --name NAME",
    })?;
    if token.role == Role::Worker {
        return Err(Error::Usage(format!(
            "this token is for a worker, not for a person: ringtune-worker --coordinator {url} --join TOKEN"
        )));
    }

    // 2. The exchange.
    let (key, csr) = Csr::make().map_err(|error| AccessError::Given(error.to_string()))?;
    let certified = Box::pin(Client::joining(&url, &token).join(&token, csr.der())).await?;
    let credentials = made_of(key, &certified)?;
    let holder = credentials.identity().map_err(|error| AccessError::Given(error.to_string()))?.clone();
    if (holder.role, holder.cluster) != (token.role, token.cluster) {
        return Err(
            AccessError::Given(format!("it is for {holder} of the cluster {}", holder.cluster)).into()
        );
    }

    // 3. Kept, and used from now on.
    let folder = places.login(&url);
    let until = Timestamp::from(credentials.validity().until);
    let (kept, place, default) = (credentials, folder.clone(), url.clone());
    blocking(move || {
        kept.store(&place).map_err(|source| AccessError::Credentials { folder: place, source })?;
        places.set_default(&default)
    })
    .await?;
    output.json(&LoginObject::new(&url, &holder, &until, &folder))?;
    remark(&format!(
        "you are {holder} at {url}, which commands without --coordinator ask from now on\n\
         the certificate is good until {until}, and renewed by every command when it is time; it is in {}",
        folder.display()
    ));
    Ok(())
}

/// `ringtune logout`.
pub(super) async fn logout(arguments: LogoutArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let places = Places::of(&Environment::read())?;
    let named = arguments.url;
    let forgotten = blocking(move || {
        let url = match named {
            Some(url) => Some(url),
            None => places.default_coordinator()?,
        };
        url.map(|url| places.forget(&url).map(|was_there| (url, was_there))).transpose()
    });
    let Some((url, was_there)) = forgotten.await? else {
        return Err(Error::Usage("there is no login that could be ended".to_owned()));
    };
    output.json(&LogoutObject::new(&url, was_there))?;
    remark(&match was_there {
        true => format!("logged out from {url}"),
        false => format!("there was no login at {url}"),
    });
    Ok(())
}

/// `ringtune whoami`. Also takes over the roots that are to be trusted from now on.
pub(super) async fn whoami(arguments: AskArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let reached = reach(&arguments.coordinator).await?;
    let answer = reached.client.who_am_i().await?;
    if let Err(error) = take_roots(&reached, &answer).await {
        remark(&format!("warning: the roots that the coordinator has now are not taken over: {error}"));
    }
    let source = reached.found.as_ref().map(|found| found.source.to_string()).unwrap_or_default();
    let object = IdentityObject::new(&reached.url, &answer, &source);
    Ok(output.data(&identity_text(&reached.url, &answer, &source), &object)?)
}

fn identity_text(url: &CoordinatorUrl, answer: &v1::WhoAmIResponse, source: &str) -> String {
    if answer.role == v1::Role::Unspecified as i32 {
        return format!("{url} asks nobody who they are: everybody may do everything");
    }
    let mut lines = vec![("role", role_name(answer.role).to_owned()), ("name", answer.name.clone())];
    lines.push(("cluster", answer.cluster.clone()));
    lines.push(("until", time_text(answer.expire_time.as_ref())));
    lines.push(("at", url.to_string()));
    lines.push(("by", source.to_owned()));
    if let Some(usage) = &answer.usage {
        lines.push(("files", usage_text(usage)));
    }
    facts(&lines)
}

/// What an owner has on the coordinator's disk, and may have.
fn usage_text(usage: &v1::OwnerUsage) -> String {
    let v1::OwnerUsage { bytes, max_bytes, files, max_files } = *usage;
    let most = if max_bytes == 0 { String::new() } else { format!(" of {}", size_text(max_bytes)) };
    format!("{files} of {max_files}, with {}{most}", size_text(bytes))
}

/// Keeps the coordinator's roots beside the certificate if they are others than those that are there.
async fn take_roots(reached: &Reached, answer: &v1::WhoAmIResponse) -> Result<(), Error> {
    let Some(found) = &reached.found else { return Ok(()) };
    let (Some(folder), Some(credentials)) = (found.source.renewed_in(), found.trust.credentials()) else {
        return Ok(());
    };
    if answer.roots_pem.is_empty() {
        return Ok(());
    }
    let roots = Roots::from_pem(&answer.roots_pem).map_err(|error| AccessError::Given(error.to_string()))?;
    if roots == *credentials.roots() {
        return Ok(());
    }
    found.trust.set_roots(roots.clone()).map_err(|error| AccessError::Given(error.to_string()))?;
    let (folder, credentials) = (folder.to_owned(), Credentials::clone(&credentials).with_roots(roots));
    blocking(move || credentials.store(&folder).map_err(|source| AccessError::Credentials { folder, source }))
        .await
}
