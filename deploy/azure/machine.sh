#!/bin/bash
# Installs a machine of a Ringtune cluster on Azure: the coordinator, which keeps tokens for the workers and for its owner, or a
# worker. cluster.bicep puts in what stands between @s.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
# Nobody logs in: az vm run-command reaches a machine.
systemctl disable --now ssh 2>/dev/null || true
apt-get update -qq
apt-get install -y -qq curl jq

# 1. Services of Azure, as this machine: azure-call RESOURCE ARGUMENT-OF-CURL...
cat >/usr/local/sbin/azure-call <<'END'
#!/bin/bash
set -euo pipefail
metadata='http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&client_id=@IDENTITY@'
token="$(curl -sf -H Metadata:true "$metadata&resource=$1" | jq -r .access_token)"
shift
# Not as an argument, which every user of the machine could see.
exec curl -sSf -H @<(printf 'Authorization: Bearer %s\n' "$token") "$@"
END
chmod 755 /usr/local/sbin/azure-call

# 2. The packages, whose hashes are uploaded last.
package() { azure-call https://storage.azure.com/ -H 'x-ms-version: 2021-08-06' --remote-name '@PACKAGES@'/"$1"; }
mkdir -p /var/cache/ringtune
cd /var/cache/ringtune
until package SHA256SUMS; do sleep 10; done
case '@ROLE@' in
coordinator) names='ringtune|ringtune-coordinator' ;;
worker) names='ringtune-worker|ringtune-libtorch' ;;
esac
grep -E " ($names)_[^/]+\.deb$" SHA256SUMS >wanted
while read -r _ name; do package "$name"; done <wanted
sha256sum --check --quiet wanted
apt-get install -y -qq ./*.deb
own="$(hostname -I | cut -d' ' -f1)"
unit=/etc/systemd/system/ringtune-@ROLE@.service.d
mkdir -p "$unit"

# 3. The service.
case '@ROLE@' in
coordinator)
    cat >"$unit/cloud.conf" <<END
[Service]
Environment=RINGTUNE__GRPC__LISTEN=0.0.0.0:7070 RINGTUNE__HTTP__LISTEN=0.0.0.0:7071
Environment=RINGTUNE__AUTHORITY__NAMES=$own,@ADDRESS@
END
    cat >/usr/local/sbin/ringtune-tokens <<'END'
#!/bin/bash
set -euo pipefail
put() {
    jq -R '{value: .}' |
        azure-call https://vault.azure.net -X PUT -H 'Content-Type: application/json' --data @- "$1/secrets/token?api-version=7.4" >/dev/null
}
ringtune token create --role worker --uses 1000 --ttl 30d 2>/dev/null | put '@JOIN@'
ringtune token create --role admin --name owner --uses 100 --ttl 30d 2>/dev/null | put '@LOGIN@'
END
    chmod 755 /usr/local/sbin/ringtune-tokens
    cat >/etc/systemd/system/ringtune-tokens.service <<'END'
[Unit]
Description=Tokens of the Ringtune cluster
After=ringtune-coordinator.service
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/ringtune-tokens
Restart=on-failure
RestartSec=10
END
    cat >/etc/systemd/system/ringtune-tokens.timer <<'END'
[Timer]
OnBootSec=10
OnUnitActiveSec=7d
[Install]
WantedBy=timers.target
END
    systemctl daemon-reload
    systemctl restart ringtune-coordinator
    systemctl enable --now ringtune-tokens.timer
    systemctl start ringtune-tokens
    ;;
worker)
    cat >"$unit/cloud.conf" <<'END'
[Service]
Environment=RINGTUNE__COORDINATOR__URL=https://@COORDINATOR@:7070
Environment=RINGTUNE__GRPC__LISTEN=0.0.0.0:7080 RINGTUNE__CLOUD__PROVIDER=azure
END
    umask 077
    until azure-call https://vault.azure.net '@JOIN@/secrets/token?api-version=7.4' >token.json; do sleep 5; done
    jq -r .value token.json >/etc/ringtune/join-token
    rm token.json
    systemctl daemon-reload
    systemctl enable --now ringtune-worker
    ;;
esac
