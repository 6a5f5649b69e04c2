package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	w "github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// TestProtection_EachMutationIsCheckedOrExempt requires an entry for every procedure that changes something. The
// entry says how protections are checked, or why no check is needed.
func TestProtection_EachMutationIsCheckedOrExempt(t *testing.T) {
	const (
		newRollout = "checked: it makes a rollout (deployment.compose), to which the protections of that moment apply"
		lessOnly   = "exempt: it stops or removes, and serves nothing new"
		sameThing  = "exempt: the running version stays the version that was approved"
		notARun    = "exempt: it changes no running version"
		tenancy    = "exempt: it changes a workspace or region as a whole, and makes no rollout"
		ownersOnly = "exempt: only owners or operators may do it, and it is in the audit"
	)
	walk := map[string]string{
		w.AppServiceCreateAppProcedure:                           notARun,
		w.AppServiceUpdateAppProcedure:                           notARun,
		w.AppServiceDeleteAppProcedure:                           ownersOnly,
		w.AppServiceDeployProcedure:                              newRollout,
		w.AppServiceScaleProcedure:                               sameThing + ", also from 0 replicas: the version was live, or waits at its gate",
		w.AppServiceSetEnvironmentProcedure:                      newRollout,
		w.AppServiceRollbackProcedure:                            newRollout + "; the version that was live and stable before needs no approval again",
		w.AppServiceCancelProcedure:                              lessOnly + ": the live version stays",
		w.AppServicePinVersionProcedure:                          "checked: a version that was never live is refused (mayServeAgain)",
		w.AppServiceUnpinVersionProcedure:                        lessOnly,
		w.DeploymentServiceRestartInstanceProcedure:              sameThing,
		w.RolloutServicePauseRolloutProcedure:                    lessOnly,
		w.RolloutServiceResumeRolloutProcedure:                   sameThing + "; ending a person's pause opens no gate",
		w.RolloutServiceRetryRolloutProcedure:                    sameThing + "; gates and bakes of the rollout stay",
		w.RolloutServiceSkipBakeProcedure:                        "checked: only an owner may skip a protection's bake time (maySkip)",
		w.RolloutServicePromoteProcedure:                         "checked: with full, it needs an owner like SkipBake, and it opens no gate",
		w.RolloutServiceApproveProcedure:                         "checked: the gate decides which keys count",
		w.RegionServiceCreateRegionProcedure:                     ownersOnly,
		w.RegionServiceUpdateRegionProcedure:                     ownersOnly,
		w.RegionServiceDeleteRegionProcedure:                     ownersOnly,
		w.RegionServiceCreateJoinTokenProcedure:                  ownersOnly,
		w.RegionServiceRevokeCredentialsProcedure:                ownersOnly,
		w.RegionServiceApprovePruneProcedure:                     ownersOnly,
		w.RegionServiceGrantRegionProcedure:                      tenancy,
		w.RegionServiceRevokeGrantProcedure:                      tenancy,
		w.RegionServiceEvictWorkspaceProcedure:                   tenancy,
		w.RegionServiceApproveGatewayProcedure:                   tenancy,
		w.AccessServiceCreateApiKeyProcedure:                     "checked: keys that one key made are one approver (APIKey.Family)",
		w.AccessServiceRevokeApiKeyProcedure:                     ownersOnly,
		w.MemberServiceRemoveMemberProcedure:                     ownersOnly,
		w.MemberServiceRestoreMemberProcedure:                    ownersOnly,
		w.MemberServiceSetSignInRuleProcedure:                    "checked: members by a rule of an owner are one approver with that owner (Grant.FamilyID)",
		w.MemberServiceRemoveSignInRuleProcedure:                 ownersOnly,
		w.WorkspaceServiceCreateWorkspaceProcedure:               tenancy,
		w.WorkspaceServiceUpdateWorkspaceProcedure:               notARun,
		w.WorkspaceServiceDeleteWorkspaceProcedure:               tenancy,
		w.WorkspaceServiceSetQuotaProcedure:                      tenancy,
		w.WorkspaceServiceSetFeaturesProcedure:                   tenancy,
		w.WorkspaceServiceSetTierProcedure:                       tenancy,
		w.WorkspaceServiceDeleteTierProcedure:                    tenancy,
		w.ProjectServiceCreateProjectProcedure:                   notARun,
		w.ProjectServiceUpdateProjectProcedure:                   notARun + ": a protection refers to the project's id",
		w.ProjectServiceDeleteProjectProcedure:                   ownersOnly + ": it must have no apps",
		w.EnvironmentServiceCreateEnvironmentProcedure:           notARun,
		w.EnvironmentServiceUpdateEnvironmentProcedure:           notARun + ": its variables come with the next rollout, which is checked",
		w.EnvironmentServiceDeleteEnvironmentProcedure:           ownersOnly + ": it must have no apps",
		w.EnvironmentServiceSetSecretProcedure:                   newRollout + "; so does a rollback with new values",
		w.EnvironmentServiceDeleteSecretProcedure:                lessOnly,
		w.PresetServiceSetPresetProcedure:                        notARun + ": the next deploy with it is checked",
		w.PresetServiceDeletePresetProcedure:                     notARun,
		w.FreezeServiceSetFreezeProcedure:                        ownersOnly,
		w.FreezeServiceLiftFreezeProcedure:                       ownersOnly + ": a held rollout still has its gate",
		w.ProtectionServiceSetProtectionProcedure:                ownersOnly,
		w.ProtectionServiceRemoveProtectionProcedure:             ownersOnly,
		w.NotificationServiceSetNotificationEndpointProcedure:    notARun,
		w.NotificationServiceRemoveNotificationEndpointProcedure: notARun,
		w.NotificationServiceRotateNotificationSecretProcedure:   notARun,
		w.NotificationServiceTestNotificationEndpointProcedure:   notARun,
		w.NotificationServiceReplayNotificationsProcedure:        notARun,
		w.RouteServiceAddDomainProcedure:                         notARun + ": the app that has the domain serves it",
		w.RouteServiceVerifyDomainProcedure:                      notARun + ": the app that has the domain serves it",
		w.RouteServiceRemoveDomainProcedure:                      "checked: another app could take the domain (mayLeave)",
		w.RouteServiceCreateAppKeyProcedure:                      notARun,
		w.RouteServiceRevokeAppKeyProcedure:                      notARun,
	}
	for procedure := range access {
		if reads[procedure] {
			require.NotContains(t, walk, procedure, "%s changes nothing", procedure)
			continue
		}
		if _, ok := walk[procedure]; !ok {
			t.Errorf("add %s to this table: say how protections are checked, or why it is exempt", procedure)
		}
	}
	for procedure, answer := range walk {
		require.Contains(t, access, procedure)
		if strings.HasPrefix(answer, newRollout) {
			require.True(t, access[procedure].Starts, "%s makes a rollout, so it must have Starts", procedure)
		}
		if strings.HasPrefix(answer, newRollout) || strings.HasPrefix(answer, sameThing) {
			require.NotEmpty(t, access[procedure].Operation, "%s changes workloads, so it must have an Operation", procedure)
		}
		if answer == ownersOnly {
			require.False(t, deployer.Role >= access[procedure].Role && access[procedure].Role != 0, procedure)
		}
	}
}
