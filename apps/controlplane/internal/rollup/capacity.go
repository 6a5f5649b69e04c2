package rollup

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Capacity returns what the region's agent last reported, which is empty before its first report.
func Capacity(r model.Region) (*agentv1.Capacity, error) {
	capacity := &agentv1.Capacity{}
	if err := proto.Unmarshal(r.Capacity, capacity); err != nil {
		return nil, fmt.Errorf("read capacity of region %s: %w", r.ID, err)
	}
	return capacity, nil
}

// GPUs returns the capacity's pools of GPUs, as the API shows them.
func GPUs(c *agentv1.Capacity) (out []*windlassv1.GpuCapacity) {
	for _, g := range c.GetGpus() {
		out = append(out, &windlassv1.GpuCapacity{
			Product: g.GetProduct(), Pool: g.GetPool(), Allocatable: g.GetAllocatable(),
			Requested: g.GetRequested(), LargestFree: g.GetLargestFree(), Free: g.GetFree(), Quota: g.GetQuota(),
			Hosts: g.GetHosts(), ResourceName: g.GetResourceName(), MemoryMib: g.GetMemoryMib(),
		})
	}
	return out
}
