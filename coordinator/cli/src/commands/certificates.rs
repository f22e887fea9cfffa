//! `ringtune cert`: the certificates that the cluster's authority gave.

use prost_types::Timestamp;
use ringtune_proto::v1;

use super::{
    reach::{begin, client_of},
    resolve,
    table::{print_table, table},
};
use crate::{
    access_arguments::{CertCommand, RevokeCertificateArguments},
    access_objects::{CertificateObject, RenewedObject, RevokedObject, role_name, wire_role},
    client::{Client, Which},
    common_arguments::{AskArguments, OutputArguments},
    credentials::{CredentialSource, renew},
    error::Error,
    output::{Output, remark, time_text},
};

/// Lists, revokes or renews.
pub(super) async fn cert(command: CertCommand) -> Result<(), Error> {
    match command {
        CertCommand::List(arguments) => {
            let certificates = client_of(&arguments.coordinator).await?.list_certificates().await?;
            list(&certificates, arguments.output)
        }
        CertCommand::Revoke(arguments) => revoke(arguments).await,
        CertCommand::Renew(arguments) => renew_own(arguments).await,
    }
}

fn list(certificates: &[v1::Certificate], output: OutputArguments) -> Result<(), Error> {
    let output = Output::new(output.output);
    if output.is_json() {
        let line = |certificate| Ok(output.json(&CertificateObject::from(certificate))?);
        return certificates.iter().try_for_each(line);
    }
    if certificates.is_empty() {
        remark("no certificates");
        return Ok(());
    }
    let mut table = table(&["SERIAL", "ROLE", "NAME", "CREATED", "EXPIRES", "ROOT", "REVOKED"]);
    for certificate in certificates {
        let member = certificate.member.clone().unwrap_or_default();
        table.add_row([
            certificate.serial.clone(),
            role_name(member.role).to_owned(),
            member.name,
            time_text(certificate.create_time.as_ref()),
            time_text(certificate.expire_time.as_ref()),
            certificate.root.to_string(),
            time_text(certificate.revoke_time.as_ref()),
        ]);
    }
    print_table(output, &table)
}

async fn revoke(arguments: RevokeCertificateArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    let which = which(&client, &arguments).await?;
    let found = client.revoke_certificate(which.clone()).await?;
    output.json(&RevokedObject::new(&which, found))?;
    if found == Some(0) {
        return Err(Error::Usage(unknown(&which)));
    }
    remark(match which {
        Which::Serial(_) => "revoked; its connections end now",
        Which::Member(_) => "revoked; all its connections end now, and only a new token lets it in again",
    });
    Ok(())
}

/// What was revoked, and is none of the cluster's: more likely a slip than meant.
fn unknown(which: &Which) -> String {
    match which {
        Which::Serial(serial) => format!(
            "`ringtune cert list` shows no certificate with the serial number {serial}; it is refused from now on all the \
             same"
        ),
        Which::Member(member) => {
            let (role, name) = (role_name(member.role), &member.name);
            format!(
                "{role} {name} has no certificate and no access token; `ringtune cert list` shows who has one. This name is \
                 refused from now on all the same, until a newer token lets it in"
            )
        }
    }
}

async fn which(client: &Client, arguments: &RevokeCertificateArguments) -> Result<Which, Error> {
    let member = |role: v1::Role, name: String| Which::Member(v1::Member { role: role as i32, name });
    let RevokeCertificateArguments { serial, worker, name, role, .. } = arguments;
    match (serial, worker, name, role) {
        (Some(serial), ..) => Ok(Which::Serial(serial.clone())),
        (_, Some(worker), ..) => {
            Ok(member(v1::Role::Worker, resolve::worker(client, worker).await?.to_string()))
        }
        (.., Some(name), Some(role)) => Ok(member(wire_role(*role), name.clone())),
        // The command line has been checked.
        _ => Err(Error::Usage("which certificate? give SERIAL, --worker, or --role and --name".to_owned())),
    }
}

async fn renew_own(arguments: AskArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let reached = begin(&arguments.coordinator).await?;
    let nothing = |why: &str| Err(Error::Usage(format!("there is no certificate to renew here: {why}")));
    let Some(found) = &reached.found else {
        return nothing(&format!("{} asks nobody who they are", reached.url));
    };
    match &found.source {
        CredentialSource::Folder(_) | CredentialSource::Login(_) => {}
        CredentialSource::Admin(_) => return nothing("the coordinator renews its admin's by itself"),
        CredentialSource::Elsewhere(_) => return nothing("another authority gave it"),
        CredentialSource::Token(variable) => return nothing(&format!("{variable} is used instead of one")),
    }
    let renewed = Box::pin(renew(&reached.client, found)).await?;
    let until = Timestamp::from(renewed.validity().until);
    output.json(&RenewedObject::new(renewed.serial(), &until, &found.source))?;
    remark(&format!("renewed; the certificate is good until {until}"));
    Ok(())
}
