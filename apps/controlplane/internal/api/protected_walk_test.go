package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	w "github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// TestProtection_EachMutationAsksItOrNeedsNot holds every procedure that changes something to an
// answer: how protections are asked for it, or why that is not needed.
func TestProtection_EachMutationAsksItOrNeedsNot(t *testing.T) {
	const (
		newRollout = "asks: it makes a rollout (deployment.compose), which starts by the protections of that moment"
		lessOnly   = "no: it stops or removes, and serves nothing new"
		sameThing  = "no: what runs stays the version that was approved"
		notARun    = "no: it changes nothing that runs"
		tenancy    = "no: it is about a workspace or region as a whole, and makes no rollout"
		ownersOnly = "no: only owners or operators may, and it is in the audit"
	)
	walk := map[string]string{
		w.AppServiceCreateAppProcedure:                           notARun,
		w.AppServiceUpdateAppProcedure:                           notARun,
		w.AppServiceDeleteAppProcedure:                           ownersOnly,
		w.AppServiceDeployProcedure:                              newRollout,
		w.AppServiceScaleProcedure:                               sameThing + ", from 0 replicas, too: it was live, or waits at its gate",
		w.AppServiceSetEnvironmentProcedure:                      newRollout,
		w.AppServiceRollbackProcedure:                            newRollout + "; the version that was live and stable before needs no approval again",
		w.AppServiceCancelProcedure:                              lessOnly + ": the live version stays",
		w.AppServicePinVersionProcedure:                          "asks: a version that never was live is refused (mayServeAgain)",
		w.AppServiceUnpinVersionProcedure:                        lessOnly,
		w.DeploymentServiceRestartInstanceProcedure:              sameThing,
		w.RolloutServicePauseRolloutProcedure:                    lessOnly,
		w.RolloutServiceResumeRolloutProcedure:                   sameThing + "; a pause of people's opens no gate",
		w.RolloutServiceRetryRolloutProcedure:                    sameThing + "; gates and bakes of the rollout stay",
		w.RolloutServiceSkipBakeProcedure:                        "asks: a bake time of a protection takes an owner (maySkip)",
		w.RolloutServicePromoteProcedure:                         "asks: in full it takes an owner as SkipBake does, and it opens no gate",
		w.RolloutServiceApproveProcedure:                         "asks: the gate says whose key counts",
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
		w.AccessServiceCreateApiKeyProcedure:                     "asks: keys that one key made are one approver (APIKey.Family)",
		w.AccessServiceRevokeApiKeyProcedure:                     ownersOnly,
		w.WorkspaceServiceCreateWorkspaceProcedure:               tenancy,
		w.WorkspaceServiceUpdateWorkspaceProcedure:               notARun,
		w.WorkspaceServiceDeleteWorkspaceProcedure:               tenancy,
		w.WorkspaceServiceSetQuotaProcedure:                      tenancy,
		w.WorkspaceServiceSetFeaturesProcedure:                   tenancy,
		w.WorkspaceServiceSetTierProcedure:                       tenancy,
		w.WorkspaceServiceDeleteTierProcedure:                    tenancy,
		w.ProjectServiceCreateProjectProcedure:                   notARun,
		w.ProjectServiceUpdateProjectProcedure:                   notARun + ": a protection names the project by its id",
		w.ProjectServiceDeleteProjectProcedure:                   ownersOnly + ": it has no apps any more",
		w.EnvironmentServiceCreateEnvironmentProcedure:           notARun,
		w.EnvironmentServiceUpdateEnvironmentProcedure:           notARun + ": its variables come with the next rollout, which asks",
		w.EnvironmentServiceDeleteEnvironmentProcedure:           ownersOnly + ": it has no apps any more",
		w.EnvironmentServiceSetSecretProcedure:                   newRollout + "; so does a rollback that takes new values along",
		w.EnvironmentServiceDeleteSecretProcedure:                lessOnly,
		w.PresetServiceSetPresetProcedure:                        notARun + ": the next deploy with it asks",
		w.PresetServiceDeletePresetProcedure:                     notARun,
		w.FreezeServiceSetFreezeProcedure:                        ownersOnly,
		w.FreezeServiceLiftFreezeProcedure:                       ownersOnly + ": what it held still has its gate",
		w.ProtectionServiceSetProtectionProcedure:                ownersOnly,
		w.ProtectionServiceRemoveProtectionProcedure:             ownersOnly,
		w.NotificationServiceSetNotificationEndpointProcedure:    notARun,
		w.NotificationServiceRemoveNotificationEndpointProcedure: notARun,
		w.NotificationServiceRotateNotificationSecretProcedure:   notARun,
		w.NotificationServiceTestNotificationEndpointProcedure:   notARun,
		w.NotificationServiceReplayNotificationsProcedure:        notARun,
		w.RouteServiceAddDomainProcedure:                         notARun + ": the app that has the domain serves it",
		w.RouteServiceVerifyDomainProcedure:                      notARun + ": the app that has the domain serves it",
		w.RouteServiceRemoveDomainProcedure:                      "asks: another app could take the domain (mayLeave)",
		w.RouteServiceCreateAppKeyProcedure:                      notARun,
		w.RouteServiceRevokeAppKeyProcedure:                      notARun,
	}
	for procedure := range access {
		if reads[procedure] {
			require.NotContains(t, walk, procedure, "it changes nothing")
			continue
		}
		if _, ok := walk[procedure]; !ok {
			t.Errorf("%s has no row here: say how protections are asked, or why that is not needed", procedure)
		}
	}
	for procedure, answer := range walk {
		require.Contains(t, access, procedure)
		if strings.HasPrefix(answer, newRollout) {
			require.True(t, access[procedure].Starts, "%s makes a rollout: it starts work", procedure)
		}
		if strings.HasPrefix(answer, newRollout) || strings.HasPrefix(answer, sameThing) {
			require.NotEmpty(t, access[procedure].Operation, "%s changes what runs: metrics count it", procedure)
		}
		if answer == ownersOnly {
			require.False(t, deployer.Role >= access[procedure].Role && access[procedure].Role != 0, procedure)
		}
	}
}
