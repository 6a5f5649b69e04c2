package dev

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/windlass-run/windlass/pkg/flock"
)

// Networks of pods are 127.N.0.0/16. Pods listen on ports that their deployments fix, so each region needs different
// addresses. Many programs use addresses in 127.0. firstNetwork is also kubelab's own default.
const (
	firstNetwork = 64
	lastNetwork  = 127
)

func networkCIDR(network int) string { return fmt.Sprintf("127.%d.0.0/16", network) }

// assignNetworks gives each region a network: its network of the last run, else the next free one. claims is
// localstack.ClaimsFolder().
func assignNetworks(claims string, last map[string]int, regions []string, say func(string)) (map[string]int, error) {
	busy, err := busyNetworks("/proc/net/tcp")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("find the networks in use: %w", err)
	}
	taken := func(n int) bool {
		if busy[n] {
			return true
		}
		// A claim lasts as long as this process; see localstack.Ports.
		_, err := flock.Try(filepath.Join(claims, "127."+strconv.Itoa(n)))
		return errors.Is(err, flock.ErrHeld)
	}
	out := map[string]int{}
	maps.Copy(out, last)
	var settled []int
	for _, region := range regions {
		want, again := last[region]
		if again && !slices.Contains(settled, want) && !taken(want) {
			settled = append(settled, want)
			continue
		}
		n := firstNetwork
		// Networks that other regions had in the last run stay theirs.
		for ; n <= lastNetwork && (slices.Contains(settled, n) || isOfAnother(last, region, n) || taken(n)); n++ { //nolint:revive // the condition is the search
		}
		if n > lastNetwork {
			return nil, fmt.Errorf("find a network for %s: 127.%d to 127.%d are all in use", region, firstNetwork, lastNetwork)
		}
		if again {
			say(fmt.Sprintf("network %s is in use; pods of %s get addresses of %s instead", networkCIDR(want), region, networkCIDR(n)))
		}
		out[region], settled = n, append(settled, n)
	}
	return out, nil
}

func isOfAnother(last map[string]int, region string, n int) bool {
	for name, had := range last {
		if name != region && had == n {
			return true
		}
	}
	return false
}

// busyNetworks returns the networks in which a process listens. It does not find a cluster without pods,
// which only its claim shows.
func busyNetworks(table string) (map[int]bool, error) {
	b, err := os.ReadFile(table)
	if err != nil {
		return nil, err
	}
	busy := map[int]bool{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		const listening = "0A"
		if len(f) < 4 || f[3] != listening {
			continue
		}
		// The address is a little-endian hexadecimal number: 0100407F:1F90.
		hex, _, _ := strings.Cut(f[1], ":")
		address, err := strconv.ParseUint(hex, 16, 32)
		if err == nil && len(hex) == 8 && address&0xff == 127 {
			busy[int(address>>8&0xff)] = true
		}
	}
	return busy, lines.Err()
}
