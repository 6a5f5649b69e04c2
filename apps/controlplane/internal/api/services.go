package api

// Each service of windlass.v1 has a type. They share a server, which has the state and functions that several
// services need.
type (
	// appService serves apps: their versions, replicas and pins, and the stream that shows them.
	appService struct{ *server }
	// deploymentService serves deployments, their instances and logs.
	deploymentService struct{ *server }
	// environmentService serves environments, their variables and secrets.
	environmentService struct{ *server }
	// freezeService serves freezes.
	freezeService struct{ *server }
	// historyService serves history and the audit.
	historyService struct{ *server }
	// logService serves logs of instances.
	logService struct{ *server }
	// notificationService serves endpoints of notifications, and their deliveries.
	notificationService struct{ *server }
	// presetService serves built-in presets of engines, and presets of workspaces.
	presetService struct{ *server }
	// projectService serves projects.
	projectService struct{ *server }
	// protectionService serves protections.
	protectionService struct{ *server }
	// externalScaler serves KEDA, which scales workloads of a cluster by the load of apps.
	externalScaler struct{ *server }
	// fleetService shows all regions and apps of a workspace.
	fleetService struct{ *server }
	// regionService serves regions, their agents, grants and gateways.
	regionService struct{ *server }
	// rolloutService serves rollouts.
	rolloutService struct{ *server }
	// seriesService serves series of requests and replicas of apps.
	seriesService struct{ *server }
	// routeService serves routes, domains and keys of apps.
	routeService struct{ *server }
	// workspaceService serves workspaces and their quotas.
	workspaceService struct{ *server }
	// memberService serves members and sign-in rules.
	memberService struct{ *server }
	// accessService serves API keys.
	accessService struct{ *server }
)
