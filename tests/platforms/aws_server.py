#!/usr/bin/env python3
"""Plays AWS for a cluster's life: moto's, which starts no machines and skips placement groups.

    aws_server.py

Prints {"endpoint": URL, "image": AMI}, and then answers each line of its standard input with a line of JSON:

    packages       puts four packages into the bucket "acme-ringtune"
    upload FOLDER  puts the packages of a folder there
    parameter NAME the value of a parameter, or null
    stack NAME     makes a stack of somebody else
    machines       the ids of machines with the tag of the cluster "toy"
    facts          what the cluster's machines may do, who reaches them, their disks, metadata and user data
    free           removes the network's route table and gateway, which moto does not do with their stack
"""

import ast
import base64
import json
import logging
import sys
import warnings
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

REGION = "eu-west-1"
BUCKET = "acme-ringtune"
PACKAGES = ["ringtune", "ringtune-coordinator", "ringtune-libtorch", "ringtune-worker"]
STACK = "ringtune-toy"


class Account:
    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})

    def client(self, service):
        keys = {"aws_access_key_id": "someone", "aws_secret_access_key": "something"}
        return boto3.client(service, endpoint_url=self.endpoint, region_name=REGION, **keys)

    def packages(self):
        for name in PACKAGES:
            self.client("s3").put_object(Bucket=BUCKET, Key=f"ringtune/packages/{name}_0.3.0_amd64.deb", Body=b"")

    def upload(self, folder):
        for path in Path(folder).glob("*.deb"):
            self.client("s3").upload_file(str(path), BUCKET, f"ringtune/packages/{path.name}")

    def parameter(self, name):
        found = self.client("ssm").get_parameters(Names=[name], WithDecryption=True)["Parameters"]
        return found[0]["Value"] if found else None

    def stack(self, name):
        template = json.dumps({"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}})
        self.client("cloudformation").create_stack(StackName=name, TemplateBody=template)

    def machines(self):
        filters = [{"Name": "tag:ringtune", "Values": ["toy"]}, {"Name": "instance-state-name", "Values": ["running", "pending"]}]
        reservations = self.client("ec2").describe_instances(Filters=filters)["Reservations"]
        return sorted(instance["InstanceId"] for reservation in reservations for instance in reservation["Instances"])

    def resources(self, stack):
        listed = self.client("cloudformation").describe_stack_resources(StackName=stack)["StackResources"]
        return {resource["LogicalResourceId"]: resource.get("PhysicalResourceId") for resource in listed if "LogicalResourceId" in resource}

    def allowed(self, role):
        """What a role may do: action, resource, and the prefix that a listing is bound to."""
        iam, found = self.client("iam"), []
        assert not iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"], role
        for policy in iam.list_role_policies(RoleName=role)["PolicyNames"]:
            document = iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
            # As Python writes it.
            document = ast.literal_eval(document) if isinstance(document, str) else document
            for statement in document["Statement"]:
                assert statement["Effect"] == "Allow" and isinstance(statement["Action"], str), statement
                wanted = statement["Resource"]
                prefix = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix", "")
                for resource in wanted if isinstance(wanted, list) else [wanted]:
                    found.append(" ".join(part for part in [statement["Action"], resource, prefix] if part))
        return sorted(found)

    def facts(self):
        ec2, resources = self.client("ec2"), self.resources(STACK)
        group = ec2.describe_security_groups(GroupIds=[resources["Machines"]])["SecurityGroups"][0]
        reached = []
        for rule in group["IpPermissions"]:
            ports = f"{rule['IpProtocol']} {rule['FromPort']}-{rule['ToPort']}"
            reached += [f"{ports} {network['CidrIp']}" for network in rule["IpRanges"]]
            reached += [f"{ports} each other" for pair in rule["UserIdGroupPairs"] if pair["GroupId"] == resources["Machines"]]
        templates = {}
        for name in ["CoordinatorTemplate", "WorkerTemplate"]:
            versions = ec2.describe_launch_template_versions(LaunchTemplateId=resources[name])["LaunchTemplateVersions"]
            data = versions[-1]["LaunchTemplateData"]
            templates[name] = {
                "tokens": data["MetadataOptions"]["HttpTokens"],
                "encrypted": all(disk["Ebs"]["Encrypted"] in [True, "true"] for disk in data["BlockDeviceMappings"]),
                "user_data": base64.b64decode(data["UserData"]).decode(),
            }
        allowed = {role: self.allowed(resources[role]) for role in ["CoordinatorRole", "WorkerRole"]}
        return {"reached": sorted(set(reached)), "templates": templates, "allowed": allowed}

    def free(self):
        ec2, resources = self.client("ec2"), self.resources(STACK + "-network")
        gateway, table = resources["Gateway"], resources["Routes"]
        ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=resources["Vpc"])
        ec2.delete_tags(Resources=[gateway], Tags=[{"Key": "ringtune"}])
        ec2.delete_internet_gateway(InternetGatewayId=gateway)
        for association in ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Associations"]:
            ec2.disassociate_route_table(AssociationId=association["RouteTableAssociationId"])
        ec2.delete_route_table(RouteTableId=table)


def main():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    account = Account(f"http://{host}:{port}")
    image = account.client("ec2").describe_images()["Images"][0]["ImageId"]
    print(json.dumps({"endpoint": account.endpoint, "image": image}), flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        print(json.dumps(getattr(account, verb)(*words)), flush=True)


main()
