package model

import (
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Move is one permitted transition of a state machine, with its cause. The tables below are the only definition:
// the planner moves along them, tests walk them, and the documentation prints them.
type Move[S comparable] struct {
	From, To S
	Cause    string
}

// CanMove reports whether the table permits the move. To stay is not a move.
func CanMove[S comparable](table []Move[S], from, to S) bool {
	for _, m := range table {
		if m.From == from && m.To == to {
			return true
		}
	}
	return false
}

// Terminal reports whether no move leaves s.
func Terminal[S comparable](table []Move[S], s S) bool {
	for _, m := range table {
		if m.From == s {
			return false
		}
	}
	return true
}

const (
	depPending    = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING
	depBuilding   = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING
	depDeploying  = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING
	depNetwork    = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK
	depReady      = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY
	depFailed     = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED
	depSuperseded = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED
	depStopped    = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED
)

// DeploymentMoves begins at pending. An ended deployment never starts again. To go back to it, a new
// deployment takes its configuration.
var DeploymentMoves = []Move[windlassv1.DeploymentStatus]{
	{depPending, depBuilding, "the image has a tag and no digest"},
	{depPending, depDeploying, "there is nothing to build"},
	{depBuilding, depDeploying, "the image's tag was resolved to a digest"},
	{depDeploying, depNetwork, "every region has its replicas ready"},
	{depNetwork, depReady, "every region acknowledged its route"},
	{depPending, depFailed, "it cannot be started, or its deadline passed"},
	{depBuilding, depFailed, "the image's tag cannot be resolved, or its deadline passed"},
	{depDeploying, depFailed, "an instance is doomed, a region refused it for good, or its deadline passed"},
	{depNetwork, depFailed, "an instance is doomed, or its deadline passed"},
	{depPending, depSuperseded, "a newer deployment took its place"},
	{depBuilding, depSuperseded, "a newer deployment took its place"},
	{depDeploying, depSuperseded, "a newer deployment took its place"},
	{depNetwork, depSuperseded, "a newer deployment took its place"},
	{depReady, depSuperseded, "another deployment is live, and it is not retained"},
	{depPending, depStopped, "cancelled, or the app is being deleted"},
	{depBuilding, depStopped, "cancelled, or the app is being deleted"},
	{depDeploying, depStopped, "cancelled, or the app is being deleted"},
	{depNetwork, depStopped, "cancelled, or the app is being deleted"},
	{depReady, depStopped, "the app was deleted"},
}

const (
	topStarting = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING
	topStarted  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
	topStopping = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
	topStopped  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED
)

// TopologyMoves begins at starting. A stopped row is the tombstone that agents are sent. If the deployment is
// assigned to the region again, its generation continues.
var TopologyMoves = []Move[windlassv1.TopologyStatus]{
	{topStarting, topStarted, "its replicas were ready for the first time"},
	{topStarting, topStopping, "the deployment ended before it was ready here"},
	{topStarted, topStopping, "the region acknowledged a route without it"},
	{topStopping, topStopped, "the region confirmed that nothing is left, or was abandoned"},
	{topStopped, topStarting, "the deployment is assigned to the region again"},
}

const (
	rtePending      = windlassv1.RouteState_ROUTE_STATE_PENDING
	rteProvisioning = windlassv1.RouteState_ROUTE_STATE_PROVISIONING
	rteRunning      = windlassv1.RouteState_ROUTE_STATE_RUNNING
	rteTerminating  = windlassv1.RouteState_ROUTE_STATE_TERMINATING
	rteTerminated   = windlassv1.RouteState_ROUTE_STATE_TERMINATED
)

// RouteMoves begins at pending for the hosts of an app, and at provisioning for the host of a version. The state of a
// host over all regions does not move along the table. It is computed from the routes that each region should serve
// and those that it reports to serve. The table has the values that may follow each other when one of these facts
// changes. A reader may see several moves as one. Terminated is shown until retention deletes the app, or the
// version's row in the region.
var RouteMoves = []Move[windlassv1.RouteState]{
	{rtePending, rteProvisioning, "it is sent to a region"},
	{rtePending, rteTerminated, "its app is deleted, and no region served it"},
	{rteProvisioning, rteRunning, "every region of it serves it as it is now"},
	{rteProvisioning, rteTerminating, "its app or version ends, or its domain was removed"},
	{rteRunning, rteProvisioning, "it changed, or is sent to another region"},
	{rteRunning, rteTerminating, "its app or version ends, or its domain was removed"},
	{rteTerminating, rteProvisioning, "it is wanted again"},
	{rteTerminating, rteRunning, "it is wanted again, before its end was sent to a region"},
	{rteTerminating, rtePending, "no region serves it any more, and its app goes on"},
	{rteTerminating, rteTerminated, "no region serves it any more, and its app or version is over"},
	{rteTerminated, rteProvisioning, "the version is assigned to the region again"},
}

const (
	insPending    = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
	insCreating   = windlassv1.InstanceStatus_INSTANCE_STATUS_CREATING
	insRunning    = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	insReady      = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	insDraining   = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	insFailed     = windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
	insTerminated = windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED
)

// InstanceMoves begins at pending. Reports merge moves, so a reader may see several as one. The runtime
// takes them one by one.
var InstanceMoves = []Move[windlassv1.InstanceStatus]{
	{insPending, insCreating, "it has what it needs to start"},
	{insPending, insFailed, "it cannot be started"},
	{insPending, insTerminated, "it is no longer wanted"},
	{insCreating, insRunning, "its process runs"},
	{insCreating, insFailed, "its process did not start"},
	{insCreating, insTerminated, "it is no longer wanted"},
	{insRunning, insReady, "its health check passed often enough"},
	{insRunning, insDraining, "it is no longer wanted"},
	{insRunning, insFailed, "it ended, or was not ready within its startup budget"},
	{insRunning, insTerminated, "it is gone"},
	{insReady, insRunning, "its health check fails"},
	{insReady, insDraining, "it is no longer wanted"},
	{insReady, insFailed, "it ended by itself"},
	{insReady, insTerminated, "it is gone"},
	{insDraining, insTerminated, "it ended, or its grace was over"},
	{insFailed, insPending, "it waits for its next attempt"},
	{insFailed, insCreating, "it is restarted"},
	{insFailed, insTerminated, "it is replaced, or no longer wanted"},
}

const (
	rolRunning    = windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING
	rolSucceeded  = windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED
	rolFailed     = windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED
	rolCancelled  = windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED
	rolSuperseded = windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED
)

// RolloutMoves begins at running.
var RolloutMoves = []Move[windlassv1.RolloutStatus]{
	{rolRunning, rolSucceeded, "its deployment is live"},
	{rolRunning, rolFailed, "its deployment failed"},
	{rolRunning, rolCancelled, "a person cancelled it, or the app is being deleted"},
	{rolRunning, rolSuperseded, "a newer rollout of the app began"},
}

const (
	appIdle        = windlassv1.AppStatus_APP_STATUS_IDLE
	appProgressing = windlassv1.AppStatus_APP_STATUS_PROGRESSING
	appReady       = windlassv1.AppStatus_APP_STATUS_READY
	appDegraded    = windlassv1.AppStatus_APP_STATUS_DEGRADED
	appFailed      = windlassv1.AppStatus_APP_STATUS_FAILED
	appDeleting    = windlassv1.AppStatus_APP_STATUS_DELETING
)

// AppMoves begins at idle. An app's status is computed: the table has the values that may follow
// each other. No value follows deleting.
var AppMoves = []Move[windlassv1.AppStatus]{
	{appIdle, appProgressing, "a rollout began"},
	{appIdle, appFailed, "the first deployment failed"},
	{appIdle, appDeleting, "a person deletes it"},
	{appProgressing, appIdle, "the first rollout was cancelled"},
	{appProgressing, appReady, "every replica is ready in every region"},
	{appProgressing, appDegraded, "replicas fail, or a region is out of reach"},
	{appProgressing, appFailed, "no replica is ready, or the first deployment failed"},
	{appProgressing, appDeleting, "a person deletes it"},
	{appReady, appProgressing, "a rollout began, or replicas were added"},
	{appReady, appDegraded, "replicas fail, or a region is out of reach"},
	{appReady, appFailed, "no replica is ready"},
	{appReady, appDeleting, "a person deletes it"},
	{appDegraded, appProgressing, "a rollout began, or replicas are on their way"},
	{appDegraded, appReady, "every replica is ready in every region"},
	{appDegraded, appFailed, "no replica is ready"},
	{appDegraded, appDeleting, "a person deletes it"},
	{appFailed, appIdle, "a later first rollout was cancelled"},
	{appFailed, appProgressing, "a rollout began, or replicas are on their way"},
	{appFailed, appReady, "every replica is ready in every region"},
	{appFailed, appDegraded, "some replicas are ready"},
	{appFailed, appDeleting, "a person deletes it"},
}
