package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) listRegions(ctx context.Context) error {
	items, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Region, *windlassv1.PageResponse, error) {
		r, err := a.clients.regions.ListRegions(ctx, &windlassv1.ListRegionsRequest{Page: p})
		return r.GetRegions(), r.GetPage(), err
	})
	if err != nil {
		return err
	}
	return showList(a, items, func(w *tabwriter.Writer) {
		writeRow(w, "REGION", "STATUS", "RUNTIME", "INSTANCES", "GPUS", "CPU", "MEMORY", "ISOLATION", "REPORTED", "AGENT")
		for _, r := range items {
			writeRow(w, r.Name, regionStatus(r), orDash(r.Runtime), r.Instances, gpusText(r), coresText(r), memoryText(r.MemoryMib), isolationText(r), ageText(r.LastReportAt), orDash(r.AgentVersion))
		}
	})
}

// isolationText returns the name of what separates instances of different workspaces.
func isolationText(r *windlassv1.Region) string {
	if r.Isolation == windlassv1.Isolation_ISOLATION_UNSPECIFIED {
		return "-"
	}
	return enumText(r.Isolation, "ISOLATION_")
}

var isolations = map[windlassv1.Isolation]string{
	windlassv1.Isolation_ISOLATION_NONE:      "none: an instance can read the secrets of others, so the region is for workspaces that trust each other",
	windlassv1.Isolation_ISOLATION_WORKSPACE: "an instance cannot read files, memory and environment of others",
}

func regionStatus(r *windlassv1.Region) string {
	status := enumText(r.Status, "REGION_STATUS_")
	if r.Quarantined > 0 {
		status += fmt.Sprintf(" (%d quarantined)", r.Quarantined)
	}
	return status
}

// gpusText returns the sums of a region's pools by product: "20/32 NVIDIA-H100-80GB-HBM3".
func gpusText(r *windlassv1.Region) string {
	var order []string
	requested, allocatable := map[string]int32{}, map[string]int32{}
	for _, g := range r.Gpus {
		name := gpuName(g)
		if _, ok := allocatable[name]; !ok {
			order = append(order, name)
		}
		requested[name] += g.Requested
		allocatable[name] += g.Allocatable
	}
	for i, name := range order {
		order[i] = fmt.Sprintf("%d/%d %s", requested[name], allocatable[name], name)
	}
	return orDash(strings.Join(order, ", "))
}

func gpuName(g *windlassv1.GpuCapacity) string {
	if g.Product == "" {
		return orDash(g.ResourceName)
	}
	return g.Product
}

func coresText(r *windlassv1.Region) string {
	return fmt.Sprintf("%.1f", float64(r.CpuMillicores)/1000)
}

func memoryText(mib int64) string {
	if mib == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f GiB", float64(mib)/1024)
}

func (a *app) showRegionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Aliases: []string{"get"}, Short: "Show a region: its agent and its free GPUs", Args: cobra.ExactArgs(1),
		Long: `Show prints the status of a region and its resources, with a line for each kind of GPU and pool.
FREE counts GPUs of hosts that accept new instances. LARGEST is the most GPUs that are free on one
host: an instance cannot get more now. QUOTA is how much of the pool Windlass may use.`,
		Example: "  windlass region show us-east-1\n  windlass region show us-east-1 -o json",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.regions.GetRegion(ctx, &windlassv1.GetRegionRequest{Region: args[0]})
			if err != nil {
				return err
			}
			return a.showMessage(resp.Region, func(w *tabwriter.Writer) { regionTable(w, resp.Region) })
		}),
	}
}

func (a *app) labelRegionCommand() *cobra.Command {
	var unset []string
	c := &cobra.Command{
		Use: "label NAME LABEL=VALUE...", Short: "Set and remove labels of a region", Args: cobra.MinimumNArgs(1),
		Long: `Label changes the labels of a region. Other labels stay. Overrides in files of apps select regions by labels, from
the next version of an app on. The labels latitude and longitude, in degrees, say where the dashboard's map shows
the region.`,
		Example: "  windlass region label eu-west-1 tier=small\n  windlass region label basement latitude=52.4 longitude=4.9\n  windlass region label eu-west-1 --unset tier",
		RunE: a.run(func(ctx context.Context, args []string) error {
			values, err := parseAssignments(args[1:])
			if err != nil {
				return err
			}
			if len(values)+len(unset) == 0 {
				return errors.New("nothing to change: give LABEL=VALUE, or --unset LABEL")
			}
			got, err := a.clients.regions.GetRegion(ctx, &windlassv1.GetRegionRequest{Region: args[0]})
			if err != nil {
				return err
			}
			labels := maps.Clone(got.Region.Labels)
			if labels == nil {
				labels = map[string]string{}
			}
			maps.Copy(labels, values)
			for _, name := range unset {
				delete(labels, name)
			}
			resp, err := a.clients.regions.UpdateRegion(ctx, &windlassv1.UpdateRegionRequest{
				Mutation: newMutation(), Region: got.Region.Id, Labels: labels, ResourceVersion: got.Region.ResourceVersion,
			})
			if err != nil {
				return err
			}
			if resp.Unchanged {
				a.infof("region %s: nothing changed", args[0])
			} else {
				a.infof("the labels of region %s are changed", args[0])
			}
			return a.showMessage(resp.Region, func(w *tabwriter.Writer) {
				writeRow(w, "LABEL", "VALUE")
				for _, name := range slices.Sorted(maps.Keys(resp.Region.GetLabels())) {
					writeRow(w, name, resp.Region.Labels[name])
				}
			})
		}),
	}
	c.Flags().StringSliceVar(&unset, "unset", nil, "labels to remove")
	return c
}

func regionTable(w *tabwriter.Writer, r *windlassv1.Region) {
	writeRow(w, "Region:", r.Name)
	status := regionStatus(r)
	if r.Message != "" {
		status += ": " + r.Message
	}
	writeRow(w, "Status:", status)
	writeRow(w, "Agent:", strings.TrimSpace(orDash(r.Runtime)+" "+r.AgentVersion)+", reported "+ageText(r.LastReportAt)+" ago")
	if r.GatewayUrl != "" {
		address := r.GatewayUrl
		if !r.GatewayApproved {
			address += " (the platform's regions hand no requests there until an operator approves it)"
		}
		writeRow(w, "Gateways:", address)
	}
	if r.Isolation != windlassv1.Isolation_ISOLATION_UNSPECIFIED {
		writeRow(w, "Isolation:", isolations[r.Isolation])
	}
	writeRow(w, "Instances:", r.Instances)
	writeRow(w, "CPU:", coresText(r)+" cores")
	writeRow(w, "Memory:", memoryText(r.MemoryMib))
	if len(r.Labels) > 0 {
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
			labels = append(labels, k+"="+r.Labels[k])
		}
		writeRow(w, "Labels:", strings.Join(labels, ", "))
	}
	if len(r.TopologyWords) > 0 {
		writeRow(w, "Topology:", strings.Join(r.TopologyWords, ", "))
	}
	for i, note := range r.Notes {
		label := ""
		if i == 0 {
			label = "Notes:"
		}
		writeRow(w, label, note)
	}
	writeRow(w)
	if len(r.Gpus) == 0 {
		writeRow(w, "No GPUs.")
		return
	}
	writeRow(w, "POOL", "GPU", "RESOURCE", "MEMORY", "HOSTS", "ALLOCATABLE", "REQUESTED", "FREE", "LARGEST", "QUOTA")
	for _, g := range r.Gpus {
		quota := "-"
		if g.Quota > 0 {
			quota = fmt.Sprint(g.Quota)
		}
		hosts, free := fmt.Sprint(g.Hosts), fmt.Sprint(g.Free)
		if g.Hosts == 0 && g.Allocatable > 0 {
			// An agent of an earlier release does not report these.
			hosts, free = "-", "-"
		}
		writeRow(w, orDash(g.Pool), orDash(g.Product), orDash(g.ResourceName), memoryText(g.MemoryMib), hosts, g.Allocatable, g.Requested, free, g.LargestFree, quota)
	}
}
