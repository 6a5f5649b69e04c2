package nodes

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestGroup_IsOneFlag(t *testing.T) {
	g, err := ParseGroup("name=h100,nodes=3,gpu=nvidia.com/gpu=8,gpu-product=NVIDIA-H100-80GB-HBM3,gpu-memory=81559," +
		"cpu=96,memory=1Ti,pods=250,zones=a|b,region=eu,spot=true,taint=nvidia.com/gpu=present:NoSchedule,taint=only:NoExecute," +
		"label=team=search,label=tier=gold")
	require.NoError(t, err)
	require.Equal(t, Group{
		Name: "h100", Count: 3, GPU: "nvidia.com/gpu", GPUs: 8, Product: "NVIDIA-H100-80GB-HBM3", MemoryMiB: 81559,
		CPU: resource.MustParse("96"), Memory: resource.MustParse("1Ti"), Pods: 250,
		Zones: []string{"a", "b"}, Region: "eu", Spot: true,
		Taints: []corev1.Taint{
			{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule},
			{Key: "only", Effect: corev1.TaintEffectNoExecute},
		},
		Labels: map[string]string{"team": "search", "tier": "gold"},
	}, g)
}

func TestGroup_ErrorNamesTheKey(t *testing.T) {
	for flag, want := range map[string]string{
		"nodes=2":                     `name: "": a lowercase RFC 1123 label`,
		"name=Big":                    `name: "Big": a lowercase RFC 1123 label`,
		"name=a,name=b":               "name is given twice",
		"name=a,nodes=2001":           "nodes must be 0 to 2000, not 2001",
		"name=a,nodes=some":           "nodes: strconv.Atoi",
		"name=a,gpu=8":                `gpu: "8" must be resource=count`,
		"name=a,gpu=gpu=8":            `gpu: "gpu" must have a domain`,
		"name=a,gpu=nvidia.com/gpu=0": "gpu: the count must be 1 to 1024, not 0",
		"name=a,gpu-product=L4":       "gpu-product and gpu-memory need gpu",
		"name=a,gpu=nvidia.com/gpu=1,gpu-product=L 4": `gpu-product: "L 4"`,
		"name=a,cpu=many":        "cpu: quantities must match",
		"name=a,cpu=-1":          "cpu must not be negative",
		"name=a,zones=a||b":      "zones: a zone has no name",
		"name=a,spot=perhaps":    "spot: strconv.ParseBool",
		"name=a,taint=k=v":       `taint: "k=v" must be key=value:Effect`,
		"name=a,taint=k=v:Never": `the effect must be NoSchedule, PreferNoSchedule or NoExecute, not "Never"`,
		"name=a,label=x":         `label: "x" must be key=value`,
		"name=a,colour=red":      "colour: unknown key; the keys are name, nodes",
		"name=a,spot":            `"spot" must be key=value`,
	} {
		_, err := ParseGroup(flag)
		require.ErrorContains(t, err, want, flag)
	}
	same := Group{Name: "a", Count: 1}
	require.ErrorContains(t, ValidateAll([]Group{same, same}), `two groups have the name "a"`)
}

func TestNodes_AreSpreadOverZonesAndHaveDiscoveryLabels(t *testing.T) {
	g, err := ParseGroup("name=a100,nodes=3,gpu=nvidia.com/mig-1g.10gb=7,gpu-product=NVIDIA-A100-SXM4-80GB,zones=x|y")
	require.NoError(t, err)
	objects := g.objects(10250)
	require.Len(t, objects, 3)
	zones := []string{}
	for _, n := range objects {
		zones = append(zones, n.Labels[corev1.LabelTopologyZone])
		require.Equal(t, int32(10250), n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	}
	require.Equal(t, []string{"x", "y", "x"}, zones)
	last := objects[2]
	require.Equal(t, "a100-2", last.Name)
	require.Equal(t, "7", last.Labels["nvidia.com/mig-1g.10gb.count"])
	require.Equal(t, "81920", last.Labels["nvidia.com/mig-1g.10gb.memory"])
	require.NotContains(t, last.Labels, LabelSpot)
	count, product := GPUs(last)
	require.Equal(t, int64(7), count)
	require.Equal(t, "NVIDIA-A100-SXM4-80GB", product)
}

func TestNodes_ReportTheVersionOfKubernetesInTheModule(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	require.Contains(t, string(mod), "\tk8s.io/kubernetes "+kubeletVersion+"\n")
}
