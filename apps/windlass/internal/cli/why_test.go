package cli

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const unschedulable = "none of 12 nodes fits: 4 Insufficient nvidia.com/gpu, 8 node(s) had untolerated taint {nvidia.com/gpu: present}; " +
	"preemption helps on none"

func printTable(f func(w *tabwriter.Writer)) string {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 4, 3, ' ', 0)
	f(w)
	_ = w.Flush()
	return out.String()
}

func TestStatus_ShowsReasonsInFull(t *testing.T) {
	out := printTable(func(w *tabwriter.Writer) {
		statusTable(w, &windlassv1.WatchAppResponse{
			App: &windlassv1.App{Name: "llama", ProjectName: "default", EnvironmentName: "production"},
			Deployments: []*windlassv1.Deployment{{Version: 2, Regions: []*windlassv1.RegionTopology{
				{Region: "eu-west-1", Replicas: 2, Reason: "Unschedulable", Message: unschedulable},
				{Region: "us-east-1", Replicas: 2, Reason: "Unschedulable", Message: unschedulable},
				{Region: "us-west-2", Replicas: 2, Ready: 2, Reason: "Unschedulable", Message: unschedulable},
				{Region: "local", Replicas: 1, Reason: "NotReady", Message: "connection refused"},
				{
					Region: "ap-1", Replicas: 1, Reason: "CrashLoop",
					Message: "ended 3 times in a row: exit code 17; last output: loading weights | cannot load the model: no such tensor \x1b[2J | " + strings.Repeat("=", 90),
				},
			}}},
		})
	})
	require.Contains(t, out, `
v2 in eu-west-1 and 1 more: Unschedulable
  none of 12 nodes fits: 4 Insufficient nvidia.com/gpu, 8 node(s) had untolerated taint
  {nvidia.com/gpu: present}; preemption helps on none
`)
	require.Contains(t, out, `
v2 in ap-1: CrashLoop
  ended 3 times in a row: exit code 17
  last output:
    loading weights
    cannot load the model: no such tensor \u001b[2J
    =====`)
	require.NotContains(t, out, "us-west-2:", "it is ready")
	require.Equal(t, 1, strings.Count(out, "connection refused"), "a text that the table shows in full is not repeated")
	require.NotContains(t, out, "\x1b")
}

func TestStatus_ShowsHosts(t *testing.T) {
	status := func(spec *windlassv1.DeploymentSpec, roles ...*windlassv1.RoleTopology) string {
		return printTable(func(w *tabwriter.Writer) {
			statusTable(w, &windlassv1.WatchAppResponse{
				App:         &windlassv1.App{Name: "llama", ProjectName: "default", EnvironmentName: "production", LiveVersion: 2, Replicas: 2, ReadyReplicas: 1},
				Deployments: []*windlassv1.Deployment{{Version: 2, Spec: spec, Regions: []*windlassv1.RegionTopology{{Region: "eu-west-1", Replicas: 2, Roles: roles}}}},
			})
		})
	}
	one := []*windlassv1.RoleSpec{{Name: "shard", Hosts: 4}}
	require.Contains(t, status(&windlassv1.DeploymentSpec{Roles: one}), "v2, 1 of 2 replicas ready, each of 4 hosts\n")
	require.Contains(t, status(&windlassv1.DeploymentSpec{}), "v2, 1 of 2 replicas ready\n")
	out := status(&windlassv1.DeploymentSpec{Roles: append(one, &windlassv1.RoleSpec{Name: "router"})},
		&windlassv1.RoleTopology{Role: "shard", Hosts: 4, Entry: true}, &windlassv1.RoleTopology{Role: "router", Hosts: 1})
	require.Contains(t, out, "v2, 1 of 2 replicas ready\n")
	require.Contains(t, out, "  shard of 4 hosts (entry) ")
	require.Contains(t, out, "  router  ")
	require.Equal(t, "shard/0.1 of 4 hosts", slotText(&windlassv1.Instance{Role: "shard", Slot: 1, Hosts: 4}))
	require.Equal(t, "shard/0.1", slotText(&windlassv1.Instance{Role: "shard", Slot: 1}), "a control plane of an earlier release")
}

func TestStatus_ShowsRegionsAtZero(t *testing.T) {
	const started = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
	cold := &windlassv1.DeploymentSpec{Routing: &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}}
	out := printTable(func(w *tabwriter.Writer) {
		statusTable(w, &windlassv1.WatchAppResponse{
			App: &windlassv1.App{Name: "llama", ProjectName: "default", EnvironmentName: "production"},
			Deployments: []*windlassv1.Deployment{
				{Version: 2, Spec: cold, Regions: []*windlassv1.RegionTopology{
					{Region: "at-zero", Status: started},
					{Region: "woken", Status: started, Instances: 1},
					{Region: "closed", Status: started, Reason: "RegionClosed"},
					{Region: "serves", Status: started, Replicas: 1, Ready: 1, Instances: 1},
					{Region: "removed", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED},
				}},
				{Version: 1, Spec: &windlassv1.DeploymentSpec{}, Regions: []*windlassv1.RegionTopology{{Region: "not-held", Status: started}}},
			},
		})
	})
	require.Regexp(t, `v2 +at-zero .* at zero: a request starts it\n`, out)
	require.Equal(t, 1, strings.Count(out, "a request starts it"), out)
	require.Regexp(t, `v2 +closed .* RegionClosed\n`, out)
}

func TestCutTexts_OfAThousandInstancesStayReadable(t *testing.T) {
	var cut cutTexts
	for i := range 1000 {
		cut.add("ins", "Unschedulable", unschedulable)
		cut.add("ins", "CrashLoop", strings.Repeat("x", 200)+string(rune('a'+i%26)))
	}
	out := printTable(func(w *tabwriter.Writer) { cut.print(w) })
	require.Contains(t, out, "ins and 999 more: Unschedulable")
	require.Contains(t, out, "... and 7 more: -o json shows all")
	require.Less(t, len(out), 10_000)
}

func TestRegion_ShowsFreeGPUsByPool(t *testing.T) {
	out := printTable(func(w *tabwriter.Writer) {
		regionTable(w, &windlassv1.Region{
			Name: "us-east-1", Status: windlassv1.RegionStatus_REGION_STATUS_CONNECTED, Runtime: "kubernetes", AgentVersion: "1.2",
			Notes: []string{"node h100-3 is lost"}, Labels: map[string]string{"b": "2", "a": "1"},
			Gpus: []*windlassv1.GpuCapacity{
				{
					Product: "NVIDIA-H100-80GB-HBM3", Pool: "h100", ResourceName: "nvidia.com/gpu", MemoryMib: 81559, Hosts: 4,
					Allocatable: 32, Requested: 20, Free: 8, LargestFree: 4, Quota: 24,
				},
				{Product: "NVIDIA-L4", Allocatable: 2, LargestFree: 2},
			},
		})
	})
	require.Contains(t, out, "Labels:      a=1, b=2")
	require.Contains(t, out, "Notes:       node h100-3 is lost")
	require.Contains(t, out, `
POOL   GPU                     RESOURCE         MEMORY     HOSTS   ALLOCATABLE   REQUESTED   FREE   LARGEST   QUOTA
h100   NVIDIA-H100-80GB-HBM3   nvidia.com/gpu   79.6 GiB   4       32            20          8      4         24
-      NVIDIA-L4               -                -          -       2             0           -      2         -
`)
}

func TestRegionList_SumsThePoolsOfAProduct(t *testing.T) {
	require.Equal(t, "5/8 H100, 1/2 amd.com/gpu", gpusText(&windlassv1.Region{Gpus: []*windlassv1.GpuCapacity{
		{Product: "H100", Pool: "a", Requested: 4, Allocatable: 4},
		{ResourceName: "amd.com/gpu", Requested: 1, Allocatable: 2},
		{Product: "H100", Pool: "b", Requested: 1, Allocatable: 4},
	}}))
}
