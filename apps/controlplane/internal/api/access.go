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

// need is the set of rights that a call requires of the caller's key.
type need struct {
	// Role is the lowest role of a workspace's key that may make the call. Unspecified: no key of a workspace may.
	Role windlassv1.Role
	// Operator means that operators may make the call.
	Operator bool
	// Operation is the call's name in metrics if it changes workloads. Empty for other calls.
	Operation string
	// Starts means that the call starts work, and takes a token of its workspace. Calls that cancel or delete take no
	// token, so that the limit on the rate of starts never refuses them.
	Starts bool
}

// changesWorkloads returns n for a call that changes workloads. operation is the call's name in metrics.
func (n need) changesWorkloads(operation string) need {
	n.Operation = operation
	return n
}

// startsWork returns n for a call that changes workloads and starts work.
func (n need) startsWork(operation string) need {
	n = n.changesWorkloads(operation)
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

// access has the roles that may call each procedure of windlass.v1. A procedure that is not in this table refuses all
// callers. KEDA's calls need role viewer: see external_scaler.go. Some calls require more, depending on their
// arguments: see their files. The table also marks calls that change workloads and calls that start work.
var access = map[string]need{
	w.AppServiceCreateAppProcedure:      deployer,
	w.AppServiceGetAppProcedure:         viewer,
	w.AppServiceListAppsProcedure:       viewer,
	w.AppServiceUpdateAppProcedure:      deployer,
	w.AppServiceDeleteAppProcedure:      owner.changesWorkloads("delete"),
	w.AppServiceDeployProcedure:         deployer.startsWork("deploy"),
	w.AppServicePlanDeployProcedure:     viewer,
	w.AppServiceScaleProcedure:          deployer.startsWork("scale"),
	w.AppServiceSetEnvironmentProcedure: deployer.startsWork("environment"),
	w.AppServiceRollbackProcedure:       deployer.startsWork("rollback"),
	w.AppServiceCancelProcedure:         deployer.changesWorkloads("cancel"),
	w.AppServicePinVersionProcedure:     deployer.startsWork("pin"),
	w.AppServiceUnpinVersionProcedure:   deployer.changesWorkloads("unpin"),
	w.AppServiceWatchAppProcedure:       viewer,

	w.ScalingServiceGetScalingProcedure: viewer,
	w.ScalingServiceListLoadProcedure:   viewer,

	w.DeploymentServiceGetDeploymentProcedure:   viewer,
	w.DeploymentServiceListDeploymentsProcedure: viewer,
	w.DeploymentServiceListInstancesProcedure:   viewer,
	w.DeploymentServiceGetLogsProcedure:         viewer,
	// RestartInstance also starts work, but its handler takes the token, before it calls the agent.
	w.DeploymentServiceRestartInstanceProcedure: deployer.changesWorkloads("restart"),

	w.LogServiceFollowLogsProcedure: viewer,

	w.SeriesServiceWatchSeriesProcedure: viewer,

	w.RolloutServiceGetRolloutProcedure:    viewer,
	w.RolloutServiceListRolloutsProcedure:  viewer,
	w.RolloutServicePauseRolloutProcedure:  deployer.changesWorkloads("pause"),
	w.RolloutServiceResumeRolloutProcedure: deployer.changesWorkloads("resume"),
	w.RolloutServiceRetryRolloutProcedure:  deployer.changesWorkloads("retry"),
	w.RolloutServiceSkipBakeProcedure:      deployer.changesWorkloads("skip_bake"),
	w.RolloutServicePromoteProcedure:       deployer.changesWorkloads("promote"),
	w.RolloutServiceApproveProcedure:       deployer.changesWorkloads("approve"),

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
	w.RegionServiceEvictWorkspaceProcedure:    operator.changesWorkloads("evict"),
	w.RegionServiceApproveGatewayProcedure:    operator,
	w.RegionServiceListGatewaysProcedure:      operator,

	w.AccessServiceWhoAmIProcedure:       viewerOrOperator,
	w.AccessServiceCreateApiKeyProcedure: ownerOrOperator,
	w.AccessServiceListApiKeysProcedure:  viewerOrOperator,
	w.AccessServiceRevokeApiKeyProcedure: ownerOrOperator,

	w.MemberServiceListMembersProcedure:      viewerOrOperator,
	w.MemberServiceRemoveMemberProcedure:     ownerOrOperator,
	w.MemberServiceRestoreMemberProcedure:    ownerOrOperator,
	w.MemberServiceSetSignInRuleProcedure:    ownerOrOperator,
	w.MemberServiceListSignInRulesProcedure:  viewerOrOperator,
	w.MemberServiceRemoveSignInRuleProcedure: ownerOrOperator,

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
	// A deployer may change variables. The handler requires an owner for a new name.
	w.EnvironmentServiceUpdateEnvironmentProcedure: deployer,
	w.EnvironmentServiceDeleteEnvironmentProcedure: owner,
	w.EnvironmentServiceSetSecretProcedure:         deployer.startsWork("secret"),
	w.EnvironmentServiceListSecretsProcedure:       viewer,
	w.EnvironmentServiceDeleteSecretProcedure:      deployer,

	w.PresetServiceListPresetsProcedure:  viewer,
	w.PresetServiceGetPresetProcedure:    viewer,
	w.PresetServiceRenderPresetProcedure: viewer,
	w.PresetServiceDiffPresetProcedure:   viewer,
	// All projects share presets, and a preset's definition changes what later deploys run.
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

// allowsRole reports whether a key of the role may call a procedure with need n. A role of a workspace includes all lower
// roles. The role operator includes no role of a workspace.
func (n need) allowsRole(role windlassv1.Role) bool {
	if role == windlassv1.Role_ROLE_OPERATOR {
		return n.Operator
	}
	return n.Role != windlassv1.Role_ROLE_UNSPECIFIED && role >= n.Role
}

// reads are the procedures that their protos mark as free of side effects. streams are the procedures that answer
// with a stream.
var (
	reads = proceduresWith(func(method protoreflect.MethodDescriptor) bool {
		options, ok := method.Options().(*descriptorpb.MethodOptions)
		return ok && options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	})
	streams = proceduresWith(protoreflect.MethodDescriptor.IsStreamingServer)
)

// proceduresWith returns the procedures of access, each with the result of the given function for its method.
func proceduresWith(is func(protoreflect.MethodDescriptor) bool) map[string]bool {
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

// String returns the name of the role that a key needs.
func (n need) String() string {
	switch {
	case n.Role == windlassv1.Role_ROLE_UNSPECIFIED:
		return "operator"
	case n.Operator && n.Role != windlassv1.Role_ROLE_VIEWER:
		return model.RoleName(n.Role) + " or operator"
	}
	return model.RoleName(n.Role)
}
