# Bakes an image for machines on EC2 that start in seconds: make image-recipe, and then
#   packer init target/image && packer build -var region=eu-west-1 target/image
packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "~> 1"
    }
  }
}

variable "region" {
  type = string
}

source "amazon-ebs" "debian" {
  region        = var.region
  instance_type = "m7i.large"
  ssh_username  = "admin"
  ami_name      = "ringtune-${formatdate("YYYYMMDDhhmmss", timestamp())}"
  tags          = { ringtune = "image" }

  # Debian's own. Source: wiki.debian.org/Cloud/AmazonEC2Image
  source_ami_filter {
    owners      = ["136693071363"]
    most_recent = true
    filters     = { name = "debian-12-amd64-*", virtualization-type = "hvm" }
  }

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
  }
}

build {
  sources = ["source.amazon-ebs.debian"]

  provisioner "file" {
    source      = "${path.root}/packages"
    destination = "/tmp/packages"
  }

  provisioner "shell" {
    script          = "${path.root}/install.sh"
    execute_command = "sudo bash {{ .Path }} /tmp/packages"
  }
}
