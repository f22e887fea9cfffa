#!/usr/bin/env python3
"""Plays the life of a cluster on AWS: its two stacks go up, stay as they are, grow, and leave nothing behind.

    aws.py FOLDER

FOLDER has network.yaml and cluster.yaml. The cloud is moto's, which starts no machines and skips placement groups. Prints what
the machines are allowed to do and their user data, as JSON.
"""

import ast
import base64
import json
import logging
import sys
from pathlib import Path

import boto3
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

NAME = "toy"
REGION = "eu-west-1"
TAG = [{"Key": "ringtune", "Value": NAME}]


class Cloud:
    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.stacks = self.client("cloudformation")

    def client(self, service):
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id="someone",
            aws_secret_access_key="something",
        )

    def up(self, stack, template, parameters):
        """Makes a stack or changes it; whether anything was to do."""
        asked = {
            "StackName": stack,
            "TemplateBody": template,
            "Parameters": [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
            "Tags": TAG,
            "Capabilities": ["CAPABILITY_IAM"],
        }
        try:
            self.stacks.describe_stacks(StackName=stack)
        except ClientError:
            self.stacks.create_stack(**asked)
            self.stacks.get_waiter("stack_create_complete").wait(StackName=stack)
            return True
        before = self.seen(stack)
        try:
            self.stacks.update_stack(**asked)
        except ClientError as error:
            assert "No updates are to be performed" in str(error), error
            return False
        self.stacks.get_waiter("stack_update_complete").wait(StackName=stack)
        # moto takes a template with a resource that it does not know for another one.
        return self.seen(stack) != before

    def outputs(self, stack):
        found = self.stacks.describe_stacks(StackName=stack)["Stacks"][0]
        return {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}

    def resources(self, stack):
        listed = self.stacks.describe_stack_resources(StackName=stack)["StackResources"]
        return {resource["LogicalResourceId"]: resource.get("PhysicalResourceId") for resource in listed if "LogicalResourceId" in resource}

    def seen(self, stack):
        return self.resources(stack), sorted(instance["InstanceId"] for instance in self.instances())

    def instances(self):
        """Those that run, with the tag."""
        filters = [{"Name": "tag:ringtune", "Values": [NAME]}, {"Name": "instance-state-name", "Values": ["running", "pending"]}]
        reservations = self.client("ec2").describe_instances(Filters=filters)["Reservations"]
        return [instance for reservation in reservations for instance in reservation["Instances"]]

    def down(self, stack):
        self.stacks.delete_stack(StackName=stack)
        self.stacks.get_waiter("stack_delete_complete").wait(StackName=stack)


def policies(cloud, resources):
    """What each role may do: (action, resource) pairs."""
    iam, found = cloud.client("iam"), {}
    for role in ["CoordinatorRole", "WorkerRole"]:
        name = resources[role]
        assert not iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"], name
        pairs = []
        for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            document = iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
            document = ast.literal_eval(document) if isinstance(document, str) else document
            for statement in document["Statement"]:
                assert statement["Effect"] == "Allow" and isinstance(statement["Action"], str), statement
                wanted = statement["Resource"]
                for resource in wanted if isinstance(wanted, list) else [wanted]:
                    prefix = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
                    pairs.append([statement["Action"], resource, *([prefix] if prefix else [])])
        found[role] = sorted(pairs)
    return found


def main():
    folder = Path(sys.argv[1])
    network, cluster = [(folder / name).read_text() for name in ["network.yaml", "cluster.yaml"]]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    cloud = Cloud(f"http://{host}:{port}")
    ec2, groups = cloud.client("ec2"), cloud.client("autoscaling")
    # 1. Up.
    assert cloud.up("network", network, {"Name": NAME, "Zone": REGION + "a"})
    places = cloud.outputs("network")
    wanted = {
        "Name": NAME,
        "Vpc": places["Vpc"],
        "Subnet": places["Subnet"],
        "Image": ec2.describe_images()["Images"][0]["ImageId"],
        "Bucket": "acme-models",
        "Workers": "2",
    }
    assert cloud.up("cluster", cluster, wanted)
    resources = cloud.resources("cluster")
    assert len(cloud.instances()) == 3, cloud.instances()
    # 2. A second time changes nothing.
    assert not cloud.up("network", network, {"Name": NAME, "Zone": REGION + "a"})
    assert not cloud.up("cluster", cluster, wanted)
    # 3. Nobody outside reaches anything; with clients these reach the coordinator's ports.
    def rules():
        found = ec2.describe_security_groups(GroupIds=[resources["Machines"]])["SecurityGroups"][0]
        assert all(rule["IpProtocol"] == "tcp" for rule in found["IpPermissions"])
        return sorted(
            (rule["FromPort"], rule["ToPort"], [network["CidrIp"] for network in rule["IpRanges"]], len(rule["UserIdGroupPairs"]))
            for rule in found["IpPermissions"]
        )
    assert rules() == [(7070, 7071, [], 1), (7080, 7080, [], 1)], rules()
    # 4. It grows and shrinks, and lets clients in.
    assert cloud.up("cluster", cluster, {**wanted, "Workers": "4", "Clients": "203.0.113.7/32"})
    # moto makes another group, where AWS changes the one that is there.
    resources = cloud.resources("cluster")
    group = groups.describe_auto_scaling_groups(AutoScalingGroupNames=[resources["Group"]])["AutoScalingGroups"][0]
    assert group["DesiredCapacity"] == 4, group
    # moto keeps rules of the same ports together, or apart.
    reached = {(begin, end, network) for begin, end, networks, _ in rules() for network in networks}
    assert reached == {(7070, 7071, "203.0.113.7/32")}, rules()
    # 5. What a machine is: encrypted, and its metadata only by version 2.
    data = {}
    for name in ["CoordinatorTemplate", "WorkerTemplate"]:
        versions = ec2.describe_launch_template_versions(LaunchTemplateId=resources[name])["LaunchTemplateVersions"]
        made = versions[-1]["LaunchTemplateData"]
        assert made["MetadataOptions"]["HttpTokens"] == "required", made
        assert made["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] in [True, "true"], made
        data[name] = base64.b64decode(made["UserData"]).decode()
    allowed = policies(cloud, resources)
    # 6. Down, and nothing is left.
    cloud.down("cluster")
    # moto does not take the route table out of the way by itself.
    table = cloud.resources("network")["Routes"]
    for association in ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Associations"]:
        ec2.disassociate_route_table(AssociationId=association["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=table)
    cloud.down("network")
    assert not cloud.instances()
    left = [vpc for vpc in ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]]
    assert not left, left
    assert not groups.describe_auto_scaling_groups()["AutoScalingGroups"]
    assert not ec2.describe_launch_templates()["LaunchTemplates"]
    assert not [group for group in ec2.describe_security_groups()["SecurityGroups"] if group["GroupName"] != "default"]
    assert not cloud.client("iam").list_roles()["Roles"]
    print(json.dumps({"policies": allowed, "user_data": data}))
    server.stop()


main()
