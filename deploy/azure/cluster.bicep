// A Ringtune cluster: a coordinator, and a scale set of workers that join it by a token. docs/azure.md
targetScope = 'resourceGroup'

@description('The cluster: lower-case letters, digits and -, at most 32, beginning with a letter')
@minLength(1)
@maxLength(32)
param name string
param location string = resourceGroup().location
@minValue(0)
@maxValue(100)
param workers int = 2
@description('The workers of a ring have one type. With AMX Dsv6, Ddsv6 and Esv6; on v5 it depends on the machine that Azure picks')
param workerType string = 'Standard_D16s_v6'
@description('GiB, for models, pictures and caches')
@minValue(30)
param workerDisk int = 100
@description('Spare machines, which Azure takes back 30 seconds after it says so')
param spot bool = false
param coordinatorType string = 'Standard_D2s_v6'
@description('GiB, for jobs and their files')
@minValue(30)
param coordinatorDisk int = 100
@description('One network that may call the coordinator, as 203.0.113.7/32; empty for none')
param clients string = ''
@description('Object id of who uploads the packages and reads the login token')
param owner string
@description('Azure wants one, and nobody logs in: the private half of this one was thrown away')
param sshKey string = 'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQCmWESncXw/DdzxzvnX2W6UBb1vCdZXAoYNCK4gOz4k/fmRtli+wl0S4MPwzbkWz53zbV2ecVhSztv9fj9O5X1p+1MdS0ZpAtW7zLV8leJ4AanwPwbnCojCh7qY+ZjVFl0TFASeTELm9VAt7WaCqAcNzW7UWsovTewuTd58xp0WBZpBGo34drMtsdrYeTS0b2/mdWAI75XG50C60SmpPGxjTOUyQdjKVdQSQtapr76rxOSLLzeJnEYXmF4e/ZlEmkyvoHQbDzlFDFSWqcoMn3ucGoC6Ciu3vRvyWYnb8gpZg+ZXVFMBv3wfd59LVsv3KruP/u2RwFNWSOyfMdq4wwKBiRbQUjj3rJyj784wO3okWz4l4eq70HjoZmjO9KaZU0NBlh1kLM0IXFDRQrsUulL0c56BLbrstw5B6SoP4wF/D9FMRfZ8jk+t9M+eiF3u2W7d1smDRctO0jRYpBzkLI6DWBcqkJjKSOmEvnr3CLV1UVTBM0EPQ4odaBiV7LZ1Wi8= nobody'

var tags = { ringtune: name }
var unique = uniqueString(resourceGroup().id)
var user = 'ringtune'
var linux = {
  disablePasswordAuthentication: true
  ssh: { publicKeys: [{ path: '/home/${user}/.ssh/authorized_keys', keyData: sshKey }] }
}
var image = { publisher: 'Debian', offer: 'debian-12', sku: '12-gen2', version: 'latest' }
var address = '10.77.0.4'
// What the built-in roles allow: docs/azure.md
var roles = {
  readBlobs: '2a2b9908-6ea1-4ae2-8e65-a410df84e7d1'
  writeBlobs: 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'
  readSecrets: '4633458b-17de-408a-b874-0445c86b69e6'
  writeSecrets: 'b86a8fe4-44ce-4948-aee5-eccb2c155cd7'
}

// 1. Who may call whom: the machines each other on Ringtune's ports, and the coordinator by its clients.
resource rules 'Microsoft.Network/networkSecurityGroups@2023-11-01' = {
  name: 'ringtune'
  location: location
  tags: tags
  properties: {
    securityRules: concat([
      {
        name: 'each-other'
        properties: {
          priority: 100
          direction: 'Inbound'
          access: 'Allow'
          protocol: 'Tcp'
          sourceAddressPrefix: '10.77.0.0/20'
          sourcePortRange: '*'
          destinationAddressPrefix: '10.77.0.0/20'
          destinationPortRanges: ['7070-7071', '7080']
        }
      }
      {
        name: 'nobody-else'
        properties: {
          priority: 4000
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourceAddressPrefix: '*'
          sourcePortRange: '*'
          destinationAddressPrefix: '*'
          destinationPortRange: '*'
        }
      }
    ], empty(clients) ? [] : [
      {
        name: 'clients'
        properties: {
          priority: 200
          direction: 'Inbound'
          access: 'Allow'
          protocol: 'Tcp'
          sourceAddressPrefix: clients
          sourcePortRange: '*'
          destinationAddressPrefix: '${address}/32'
          destinationPortRange: '7070-7071'
        }
      }
    ])
  }
}

resource network 'Microsoft.Network/virtualNetworks@2023-11-01' = {
  name: 'ringtune'
  location: location
  tags: tags
  properties: {
    addressSpace: { addressPrefixes: ['10.77.0.0/16'] }
    subnets: [
      { name: 'machines', properties: { addressPrefix: '10.77.0.0/20', networkSecurityGroup: { id: rules.id } } }
    ]
  }
}

// 2. What the machines may do: read packages and a token, the coordinator write tokens.
resource coordinatorIdentity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: 'coordinator'
  location: location
  tags: tags
}

resource workerIdentity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: 'worker'
  location: location
  tags: tags
}

resource storage 'Microsoft.Storage/storageAccounts@2023-01-01' = {
  name: 'rt${unique}'
  location: location
  tags: tags
  kind: 'StorageV2'
  sku: { name: 'Standard_LRS' }
  properties: {
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
  }

  resource blobs 'blobServices' = {
    name: 'default'

    resource packages 'containers' = {
      name: 'packages'
    }
  }
}

// Rights are of a whole vault, and workers must not read their owner's token.
resource joinVault 'Microsoft.KeyVault/vaults@2023-07-01' = {
  name: 'rt-join-${unique}'
  location: location
  tags: tags
  properties: {
    tenantId: subscription().tenantId
    sku: { family: 'A', name: 'standard' }
    enableRbacAuthorization: true
    softDeleteRetentionInDays: 7
  }
}

resource loginVault 'Microsoft.KeyVault/vaults@2023-07-01' = {
  name: 'rt-login-${unique}'
  location: location
  tags: tags
  properties: {
    tenantId: subscription().tenantId
    sku: { family: 'A', name: 'standard' }
    enableRbacAuthorization: true
    softDeleteRetentionInDays: 7
  }
}

resource coordinatorReadsPackages 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, 'coordinator', roles.readBlobs)
  scope: storage
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.readBlobs)
    principalId: coordinatorIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource workerReadsPackages 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, 'worker', roles.readBlobs)
  scope: storage
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.readBlobs)
    principalId: workerIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource ownerWritesPackages 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, owner, roles.writeBlobs)
  scope: storage
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.writeBlobs)
    principalId: owner
  }
}

resource coordinatorWritesJoin 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(joinVault.id, 'coordinator', roles.writeSecrets)
  scope: joinVault
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.writeSecrets)
    principalId: coordinatorIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource coordinatorWritesLogin 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(loginVault.id, 'coordinator', roles.writeSecrets)
  scope: loginVault
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.writeSecrets)
    principalId: coordinatorIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource workerReadsJoin 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(joinVault.id, 'worker', roles.readSecrets)
  scope: joinVault
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.readSecrets)
    principalId: workerIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource ownerReadsLogin 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(loginVault.id, owner, roles.readSecrets)
  scope: loginVault
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.readSecrets)
    principalId: owner
  }
}

// 3. What a machine does when it starts.
var packages = '${storage.properties.primaryEndpoints.blob}packages'
var join = 'https://${joinVault.name}${environment().suffixes.keyvaultDns}'
var login = 'https://${loginVault.name}${environment().suffixes.keyvaultDns}'
var script = replace(replace(replace(replace(loadTextContent('machine.sh'), '@PACKAGES@', packages), '@JOIN@', join), '@LOGIN@', login), '@COORDINATOR@', address)
var coordinatorScript = replace(replace(replace(script, '@ROLE@', 'coordinator'), '@IDENTITY@', coordinatorIdentity.properties.clientId), '@ADDRESS@', publicAddress.properties.ipAddress)
var workerScript = replace(replace(script, '@ROLE@', 'worker'), '@IDENTITY@', workerIdentity.properties.clientId)

// 4. The coordinator.
resource publicAddress 'Microsoft.Network/publicIPAddresses@2023-11-01' = {
  name: 'coordinator'
  location: location
  tags: tags
  sku: { name: 'Standard' }
  properties: { publicIPAllocationMethod: 'Static' }
}

resource coordinatorCard 'Microsoft.Network/networkInterfaces@2023-11-01' = {
  name: 'coordinator'
  location: location
  tags: tags
  properties: {
    enableAcceleratedNetworking: true
    ipConfigurations: [
      {
        name: 'own'
        properties: {
          subnet: { id: network.properties.subnets[0].id }
          privateIPAllocationMethod: 'Static'
          privateIPAddress: address
          publicIPAddress: { id: publicAddress.id }
        }
      }
    ]
  }
}

resource coordinator 'Microsoft.Compute/virtualMachines@2024-03-01' = {
  name: 'coordinator'
  location: location
  tags: tags
  identity: { type: 'UserAssigned', userAssignedIdentities: { '${coordinatorIdentity.id}': {} } }
  properties: {
    hardwareProfile: { vmSize: coordinatorType }
    // Custom data cannot be changed, user data can: a later release has another script.
    userData: base64(coordinatorScript)
    osProfile: { computerName: 'coordinator', adminUsername: user, linuxConfiguration: linux }
    storageProfile: {
      imageReference: image
      osDisk: {
        createOption: 'FromImage'
        deleteOption: 'Delete'
        diskSizeGB: coordinatorDisk
        managedDisk: { storageAccountType: 'StandardSSD_LRS' }
      }
    }
    networkProfile: { networkInterfaces: [{ id: coordinatorCard.id }] }
  }
}

// 5. The workers, close to each other.
resource closeness 'Microsoft.Compute/proximityPlacementGroups@2024-03-01' = {
  name: 'workers'
  location: location
  tags: tags
  properties: { proximityPlacementGroupType: 'Standard' }
}

resource group 'Microsoft.Compute/virtualMachineScaleSets@2024-03-01' = {
  name: 'workers'
  location: location
  tags: tags
  sku: { name: workerType, capacity: workers }
  identity: { type: 'UserAssigned', userAssignedIdentities: { '${workerIdentity.id}': {} } }
  properties: {
    orchestrationMode: 'Uniform'
    overprovision: false
    singlePlacementGroup: true
    proximityPlacementGroup: { id: closeness.id }
    upgradePolicy: { mode: 'Manual' }
    // Azure tries for so long to replace what it took.
    spotRestorePolicy: spot ? { enabled: true, restoreTimeout: 'PT1H' } : null
    virtualMachineProfile: {
      priority: spot ? 'Spot' : 'Regular'
      evictionPolicy: spot ? 'Delete' : null
      billingProfile: spot ? { maxPrice: -1 } : null
      userData: base64(workerScript)
      osProfile: { computerNamePrefix: 'worker', adminUsername: user, linuxConfiguration: linux }
      // Also a machine that the set gives up is told before, and its worker leaves its ring.
      scheduledEventsProfile: { terminateNotificationProfile: { enable: true, notBeforeTimeout: 'PT5M' } }
      storageProfile: {
        imageReference: image
        osDisk: {
          createOption: 'FromImage'
          diskSizeGB: workerDisk
          managedDisk: { storageAccountType: 'StandardSSD_LRS' }
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'own'
            properties: {
              primary: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'own'
                  properties: {
                    subnet: { id: network.properties.subnets[0].id }
                    // The way out, for Debian's packages and models; nobody comes in.
                    publicIPAddressConfiguration: { name: 'out', sku: { name: 'Standard' } }
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

output Coordinator string = address
output CoordinatorPublic string = publicAddress.properties.ipAddress
output Group string = group.name
output Storage string = storage.name
output LoginVault string = loginVault.name
