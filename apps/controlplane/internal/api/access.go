package api

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	w "github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// need is what a call asks of its caller's key.
type need struct {
	// Role is the least role that a workspace's key needs; unspecified: no key of a workspace may call.
	Role windlassv1.Role
	// Operator reports whether operators may call it.
	Operator bool
	// Operation is the name in metrics of a call that changes what runs, else empty.
	Operation string
	// Starts means that the call starts work, so that it takes a token of its workspace. Calls that cancel or
	// delete take none, so that the rate of starts never stops them.
	Starts bool
}

// changes returns n for a call that changes what runs. operation is the call's name in metrics.
func (n need) changes(operation string) need {
	n.Operation = operation
	return n
}

// starts returns n for a call that changes what runs, and also starts work.
func (n need) starts(operation string) need {
	n = n.changes(operation)
	n.Starts = true
	return n
}

var (
	viewer           = need{Role: windlassv1.Role_ROLE_VIEWER}
	deployer         = need{Role: windlassv1.Role_ROLE_DEPLOYER}
	owner            = need{Role: windlassv1.Role_ROLE_OWNER}
	operator         = need{Operator: true}
	viewerOrOperator = need{Role: windlassv1.Role_ROLE_VIEWER, Operator: true}
	ownerOrOperator  = need{Role: windlassv1.Role_ROLE_OWNER, Operator: true}
)

// access is the only table of the roles that may call a procedure of windlass.v1. A procedure that is not in it
// is closed to all. KEDA's calls need a viewer: see external_scaler.go. Some calls ask for more, depending on
// their arguments: see their files. The table also says which calls change what runs, and start work.
var access = map[string]need{
	w.AppServiceCreateAppProcedure:      deployer,
	w.AppServiceGetAppProcedure:         viewer,
	w.AppServiceListAppsProcedure:       viewer,
	w.AppServiceUpdateAppProcedure:      deployer,
	w.AppServiceDeleteAppProcedure:      owner.changes("delete"),
	w.AppServiceDeployProcedure:         deployer.starts("deploy"),
	w.AppServicePlanDeployProcedure:     viewer,
	w.AppServiceScaleProcedure:          deployer.starts("scale"),
	w.AppServiceSetEnvironmentProcedure: deployer.starts("environment"),
	w.AppServiceRollbackProcedure:       deployer.starts("rollback"),
	w.AppServiceCancelProcedure:         deployer.changes("cancel"),
	w.AppServicePinVersionProcedure:     deployer.starts("pin"),
	w.AppServiceUnpinVersionProcedure:   deployer.changes("unpin"),
	w.AppServiceWatchAppProcedure:       viewer,

	w.ScalingServiceGetScalingProcedure: viewer,

	w.DeploymentServiceGetDeploymentProcedure:   viewer,
	w.DeploymentServiceListDeploymentsProcedure: viewer,
	w.DeploymentServiceListInstancesProcedure:   viewer,
	w.DeploymentServiceGetLogsProcedure:         viewer,
	// RestartInstance starts work as well, but takes its token before it asks the agent.
	w.DeploymentServiceRestartInstanceProcedure: deployer.changes("restart"),

	w.LogServiceFollowLogsProcedure: viewer,

	w.SeriesServiceWatchSeriesProcedure: viewer,

	w.RolloutServiceGetRolloutProcedure:    viewer,
	w.RolloutServiceListRolloutsProcedure:  viewer,
	w.RolloutServicePauseRolloutProcedure:  deployer.changes("pause"),
	w.RolloutServiceResumeRolloutProcedure: deployer.changes("resume"),
	w.RolloutServiceRetryRolloutProcedure:  deployer.changes("retry"),
	w.RolloutServiceSkipBakeProcedure:      deployer.changes("skip_bake"),
	w.RolloutServicePromoteProcedure:       deployer.changes("promote"),
	w.RolloutServiceApproveProcedure:       deployer.changes("approve"),

	w.FleetServiceWatchFleetProcedure: viewerOrOperator,

	w.RegionServiceCreateRegionProcedure:      ownerOrOperator,
	w.RegionServiceGetRegionProcedure:         viewerOrOperator,
	w.RegionServiceListRegionsProcedure:       viewerOrOperator,
	w.RegionServiceUpdateRegionProcedure:      ownerOrOperator,
	w.RegionServiceDeleteRegionProcedure:      ownerOrOperator,
	w.RegionServiceCreateJoinTokenProcedure:   ownerOrOperator,
	w.RegionServiceRevokeCredentialsProcedure: ownerOrOperator,
	w.RegionServiceListQuarantineProcedure:    viewerOrOperator,
	w.RegionServiceApprovePruneProcedure:      ownerOrOperator,
	w.RegionServiceGrantRegionProcedure:       operator,
	w.RegionServiceRevokeGrantProcedure:       operator,
	w.RegionServiceEvictWorkspaceProcedure:    operator.changes("evict"),
	w.RegionServiceApproveGatewayProcedure:    operator,
	w.RegionServiceListGatewaysProcedure:      operator,

	w.AccessServiceWhoAmIProcedure:       viewerOrOperator,
	w.AccessServiceCreateApiKeyProcedure: ownerOrOperator,
	w.AccessServiceListApiKeysProcedure:  viewerOrOperator,
	w.AccessServiceRevokeApiKeyProcedure: ownerOrOperator,

	w.WorkspaceServiceCreateWorkspaceProcedure: operator,
	w.WorkspaceServiceGetWorkspaceProcedure:    viewerOrOperator,
	w.WorkspaceServiceListWorkspacesProcedure:  operator,
	w.WorkspaceServiceUpdateWorkspaceProcedure: ownerOrOperator,
	w.WorkspaceServiceDeleteWorkspaceProcedure: operator,
	w.WorkspaceServiceGetQuotaProcedure:        viewerOrOperator,
	w.WorkspaceServiceSetQuotaProcedure:        ownerOrOperator,
	w.WorkspaceServiceGetFeaturesProcedure:     viewerOrOperator,
	w.WorkspaceServiceSetFeaturesProcedure:     operator,
	w.WorkspaceServiceListTiersProcedure:       operator,
	w.WorkspaceServiceSetTierProcedure:         operator,
	w.WorkspaceServiceDeleteTierProcedure:      operator,

	w.ProjectServiceCreateProjectProcedure: owner,
	w.ProjectServiceGetProjectProcedure:    viewer,
	w.ProjectServiceListProjectsProcedure:  viewer,
	w.ProjectServiceUpdateProjectProcedure: owner,
	w.ProjectServiceDeleteProjectProcedure: owner,

	w.EnvironmentServiceCreateEnvironmentProcedure: owner,
	w.EnvironmentServiceGetEnvironmentProcedure:    viewer,
	w.EnvironmentServiceListEnvironmentsProcedure:  viewer,
	// A deployer may change variables, but only an owner may rename.
	w.EnvironmentServiceUpdateEnvironmentProcedure: deployer,
	w.EnvironmentServiceDeleteEnvironmentProcedure: owner,
	w.EnvironmentServiceSetSecretProcedure:         deployer.starts("secret"),
	w.EnvironmentServiceListSecretsProcedure:       viewer,
	w.EnvironmentServiceDeleteSecretProcedure:      deployer,

	w.PresetServiceListPresetsProcedure:  viewer,
	w.PresetServiceGetPresetProcedure:    viewer,
	w.PresetServiceRenderPresetProcedure: viewer,
	w.PresetServiceDiffPresetProcedure:   viewer,
	// Presets are shared by all projects, and their definitions decide what next deploys run.
	w.PresetServiceSetPresetProcedure:          owner,
	w.PresetServiceCheckPresetProcedure:        viewer,
	w.PresetServiceDeletePresetProcedure:       owner,
	w.PresetServiceListPresetVersionsProcedure: viewer,

	w.FreezeServiceSetFreezeProcedure:   owner,
	w.FreezeServiceListFreezesProcedure: viewer,
	w.FreezeServiceLiftFreezeProcedure:  owner,

	w.ProtectionServiceSetProtectionProcedure:    ownerOrOperator,
	w.ProtectionServiceListProtectionsProcedure:  viewerOrOperator,
	w.ProtectionServiceRemoveProtectionProcedure: ownerOrOperator,

	w.NotificationServiceSetNotificationEndpointProcedure:    owner,
	w.NotificationServiceListNotificationEndpointsProcedure:  viewer,
	w.NotificationServiceRemoveNotificationEndpointProcedure: owner,
	w.NotificationServiceRotateNotificationSecretProcedure:   owner,
	w.NotificationServiceTestNotificationEndpointProcedure:   owner,
	w.NotificationServiceListNotificationDeliveriesProcedure: viewer,
	w.NotificationServiceReplayNotificationsProcedure:        owner,

	w.RouteServiceListRoutesProcedure:   viewer,
	w.RouteServiceAddDomainProcedure:    deployer,
	w.RouteServiceVerifyDomainProcedure: deployer,
	w.RouteServiceRemoveDomainProcedure: deployer,
	w.RouteServiceListDomainsProcedure:  viewer,
	w.RouteServiceCreateAppKeyProcedure: deployer,
	w.RouteServiceListAppKeysProcedure:  viewer,
	w.RouteServiceRevokeAppKeyProcedure: deployer,

	w.HistoryServiceListHistoryProcedure: viewer,
	w.HistoryServiceListAuditProcedure:   ownerOrOperator,
}

// allows reports whether a key of the role may call a procedure with need n. A workspace's role includes
// those below it; the operator's role includes none of them.
func (n need) allows(role windlassv1.Role) bool {
	if role == windlassv1.Role_ROLE_OPERATOR {
		return n.Operator
	}
	return n.Role != windlassv1.Role_ROLE_UNSPECIFIED && role >= n.Role
}

// reads are the procedures whose protos say that they change nothing; streams are those that answer with a
// stream.
var (
	reads = procedures(func(method protoreflect.MethodDescriptor) bool {
		options, ok := method.Options().(*descriptorpb.MethodOptions)
		return ok && options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	})
	streams = procedures(protoreflect.MethodDescriptor.IsStreamingServer)
)

// procedures returns the procedures of access, each with the result of is.
func procedures(is func(protoreflect.MethodDescriptor) bool) map[string]bool {
	found := map[string]bool{}
	for procedure := range access {
		name := strings.ReplaceAll(strings.TrimPrefix(procedure, "/"), "/", ".")
		descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			continue // a test compares access with the protos
		}
		method, ok := descriptor.(protoreflect.MethodDescriptor)
		found[procedure] = ok && is(method)
	}
	return found
}

// String names the role that a key needs.
func (n need) String() string {
	switch {
	case n.Role == windlassv1.Role_ROLE_UNSPECIFIED:
		return "operator"
	case n.Operator && n.Role != windlassv1.Role_ROLE_VIEWER:
		return model.RoleName(n.Role) + " or operator"
	}
	return model.RoleName(n.Role)
}
