package observe

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// maxMessage is the maximum size of the message of a verdict, in bytes. Reports allow 1 KiB.
	maxMessage = 1000
	// tailLines is the number of lines of a termination message that are shown. The message has up
	// to 80 lines of output, and the last lines have the reason.
	tailLines = 3
	tailBytes = 500
)

// clipText cuts a text to at most limit bytes, between two characters.
func clipText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	cut := limit - len("...")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// tailOf returns the end of a program's output, on one line.
func tailOf(output string) string {
	var lines []string
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	lines = lines[max(0, len(lines)-tailLines):]
	s := strings.Join(lines, " | ")
	if len(s) > tailBytes {
		cut := len(s) - tailBytes
		for cut < len(s) && !utf8.RuneStart(s[cut]) {
			cut++
		}
		s = "..." + s[cut:]
	}
	return s
}

// wrappers matches the texts that container runtimes put around the registry's message.
var wrappers = regexp.MustCompile(`^(?:` + strings.Join([]string{
	`Back-off pulling image "[^"]*"(?:: )?`,
	`Failed to pull image "[^"]*": `,
	`Failed to inspect image "[^"]*": `,
	`(?:ErrImagePull|ImagePullBackOff): `,
	`rpc error: code = \w+ desc = `,
	`failed to pull and unpack image "[^"]*": `,
	`failed to resolve (?:reference|image)(?: "[^"]*")?: `,
	`Error response from daemon: `,
	`unable to pull image or OCI artifact: `,
}, "|") + `)`)

// registryText returns the registry's message without the wrappers.
func registryText(s string) string {
	s = strings.TrimSpace(s)
	for {
		w := wrappers.FindString(s)
		if w == "" {
			return s
		}
		s = s[len(w):]
	}
}

// finalPull matches answers of a registry that do not change with another attempt. A person must
// push the image or add a pull secret.
var finalPull = regexp.MustCompile(`(?i)not found$|: not found\b|manifest unknown|manifest for .* not found|name unknown|does not exist|no such image|unauthorized|authentication required|no basic auth credentials|access denied|is denied|denied: |403 forbidden|no match for platform|no matching manifest|invalid reference format`)

// wrappedRun matches the texts that container runtimes put before the reason why a program did not
// start.
var wrappedRun = regexp.MustCompile(`^(?:failed to create containerd task: |failed to create shim task: |OCI runtime create failed: |runc create failed: |unable to start container process: |error during container init: |container create failed: )+`)

// notProgram matches reasons that mean a wrong command.
var notProgram = regexp.MustCompile(`executable file(?: .*)? not found|exec(?:ve)?:? .*no such file or directory|stat .*: no such file or directory|exec(?:ve)?:? .*permission denied|exec format error|no command specified|is a directory: `)

var (
	noNode   = regexp.MustCompile(`^0/(\d+) nodes are available: ?`)
	perNode  = regexp.MustCompile(`^(\d+) (.+)$`)
	nextPart = regexp.MustCompile(`, (\d+ )`)
)

// plain replaces texts of the scheduler that read badly before "on 3".
var plain = strings.NewReplacer(
	"node(s) didn't match Pod's node affinity/selector", "node selector or affinity not matched",
	"node(s) had untolerated taint(s)", "taints not tolerated",
	"node(s) had untolerated taint", "taint not tolerated",
	"node(s) had taints that the pod didn't tolerate", "taints not tolerated",
	"node(s) were unschedulable", "cordoned",
	"node(s) didn't match pod topology spread constraints", "zone spread not possible",
	"node(s) didn't match pod anti-affinity rules", "anti-affinity not matched",
	"node(s) didn't match pod affinity rules", "affinity not matched",
	"node(s) didn't find available persistent volumes to bind", "no volume to bind",
	"node(s) ", "",
)

// schedulerText shortens the scheduler's message to the missing resources and the number of nodes:
//
//	0/8 nodes are available: 3 Insufficient nvidia.com/gpu, 5 node(s) didn't match
//	Pod's node affinity/selector. preemption: 0/8 nodes are available: ...
//
// becomes "none of 8 nodes fits: Insufficient nvidia.com/gpu on 3 (it asks for 16), node selector
// or affinity not matched on 5". If it cannot parse a text, it returns the text unchanged.
func schedulerText(s string, asked corev1.ResourceList) string {
	s = strings.TrimSpace(s)
	head := noNode.FindStringSubmatch(s)
	if head == nil {
		return s
	}
	rest := s[len(head[0]):]
	for _, end := range []string{" preemption: ", " no new claims to deallocate"} {
		if at := strings.Index(rest, end); at >= 0 {
			rest = rest[:at]
		}
	}
	rest = strings.TrimRight(strings.TrimSpace(rest), ".,")
	type part struct {
		text  string
		short bool
	}
	var parts []part
	for p := range strings.SplitSeq(nextPart.ReplaceAllString(rest, "\n$1"), "\n") {
		m := perNode.FindStringSubmatch(strings.TrimSpace(p))
		if m == nil {
			parts = append(parts, part{text: plain.Replace(p)})
			continue
		}
		q := part{text: plain.Replace(m[2]) + " on " + m[1]}
		if name, ok := strings.CutPrefix(m[2], "Insufficient "); ok {
			q.short = true
			if amount, ok := asked[corev1.ResourceName(name)]; ok {
				q.text += " (it asks for " + amount.String() + ")"
			}
		}
		q.short = q.short || m[2] == "Too many pods"
		parts = append(parts, q)
	}
	slices.SortStableFunc(parts, func(a, b part) int {
		switch {
		case a.short == b.short:
			return 0
		case a.short:
			return -1
		}
		return 1
	})
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.text
	}
	if head[1] == "0" {
		return "the cluster has no nodes"
	}
	if len(parts) == 0 || rest == "" {
		return fmt.Sprintf("none of %s nodes fits", head[1])
	}
	return fmt.Sprintf("none of %s nodes fits: %s", head[1], strings.Join(texts, ", "))
}

// byContainer matches the text that the kubelet puts before the message of the container that makes
// a check.
var byContainer = regexp.MustCompile(`^error: health rpc probe failed: rpc error: code = \w+ desc = `)

// shortenProbeText removes the parts of the kubelet's "Readiness probe failed: HTTP probe failed
// with statuscode: 503" that the reason already says.
func shortenProbeText(s string) string {
	if _, rest, ok := strings.Cut(s, " probe failed: "); ok {
		s = rest
	} else if _, rest, ok := strings.Cut(s, " probe errored and resulted in "); ok {
		s = rest
	}
	if code, ok := strings.CutPrefix(s, "HTTP probe failed with statuscode: "); ok {
		if n, err := strconv.Atoi(strings.TrimSpace(code)); err == nil {
			return fmt.Sprintf("the check answered %d", n)
		}
	}
	s = byContainer.ReplaceAllString(s, "")
	return clipText(strings.Join(strings.Fields(s), " "), tailBytes)
}

func inMebibytes(q resource.Quantity) int64 { return q.Value() >> 20 }
