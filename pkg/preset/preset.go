package preset

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Preset is one version of the knowledge about an engine.
type Preset struct {
	// Name is the engine's name in app files. Version is the version of the preset.
	Name    string
	Version int
	// Title is the engine's own name.
	Title string
	// DefaultEngine is the engine's version for apps that set no version.
	DefaultEngine string
	// From and Before limit the engine's versions for which the preset was checked. Empty means no limit.
	From, Before string
	// Schemes are the schemes of models that the engine loads itself.
	Schemes []string
	// Sources are the documents that describe the flags, ports, paths and metrics.
	Sources []Source
	// Aliases are other names of flags.
	Aliases map[string]string
	// MemoryShare is the share of a GPU's memory for weights and KV cache. 0 means unknown.
	MemoryShare float64

	// taken maps a flag to the field of serve that sets it, or to "" if Windlass sets it.
	taken map[string]string
	// axes are the kinds of parallelism that the engine has.
	axes axes
	// severalHosts means that the preset makes a server on several hosts, from the version hostsFrom of the engine on. An
	// empty hostsFrom means all versions. ranks are the flags that Windlass sets then.
	severalHosts bool
	hostsFrom    string
	ranks        []string
	// wholeInstance means that the engine spreads the model over all GPUs without a flag.
	wholeInstance bool
	generate      func(*draft)
	metrics       func(engine string) []Metric
	// within bounds the work of expressions within a request. It is nil if only each Generate has its bound.
	within *bound
}

// Source is a page of the engine's documentation, or a file of its source, with its version.
type Source struct {
	About   string `json:"about"`
	Page    string `json:"page"`
	Version string `json:"version"`
}

// Metric is the place of a signal in the engine's metrics.
type Metric struct {
	// Signal is the meaning of the metric: "queue" (waiting requests), "running" (running requests), "cache" (used part of
	// the KV cache, 0 to 1).
	Signal string `json:"signal"`
	// Metric is the engine's name of the metric.
	Metric string `json:"metric"`
	// Port is the name of the spec's port that serves the metric.
	Port string `json:"port"`
	Path string `json:"path"`
}

// Fragment is what a preset generates.
type Fragment struct {
	// GeneratedBy names the preset and its version: "vllm/1".
	GeneratedBy   string
	EngineVersion string
	// Spec has only the fields that the preset sets.
	Spec    *windlassv1.DeploymentSpec
	Metrics []Metric
}

// axes are the kinds of parallelism of an engine.
type axes struct{ tensor, pipeline, data bool }

// draft is an incomplete fragment.
type draft struct {
	preset   *Preset
	in       Input
	engine   string
	model    modelRef
	parallel Parallel
	flags    flags
	spec     *windlassv1.DeploymentSpec
	findings []Finding
}

func (d *draft) add(s Severity, code, field, text, fix string) {
	d.findings = append(d.findings, Finding{Severity: s, Code: code, Field: field, Text: text, Fix: fix})
}
func (d *draft) fail(code, field, text, fix string)       { d.add(Error, code, field, text, fix) }
func (d *draft) addWarning(code, field, text, fix string) { d.add(Warning, code, field, text, fix) }
func (d *draft) addNote(code, field, text, fix string)    { d.add(Note, code, field, text, fix) }

func clipText(text string) string {
	if len(text) > 64 {
		return strings.ToValidUTF8(text[:64], "") + "..."
	}
	return text
}

// editDistance returns how many letters must be added, removed or replaced to turn a into b.
func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := last
			if a[i] != b[j] {
				replaced++
			}
			last = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// ID returns the name and version of the preset: "vllm/1".
func (p *Preset) ID() string { return fmt.Sprintf("%s/%d", p.Name, p.Version) }

// Metrics returns the metrics of a version of the engine. An empty version means the default version.
func (p *Preset) Metrics(engine string) []Metric { return p.metrics(cmp.Or(engine, p.DefaultEngine)) }

func (d *draft) checkEngine() {
	if d.engine == "" {
		return
	}
	if len(d.engine) > 64 || !versionText(d.engine) {
		d.fail("EngineVersionInvalid", "engineVersion", fmt.Sprintf("%q is not a version", clipText(d.engine)), "use letters, digits, dots, dashes and underscores, such as 0.20.0")
		return
	}
	p := d.preset
	if p.From != "" && compareVersions(d.engine, p.From) < 0 || p.Before != "" && compareVersions(d.engine, p.Before) >= 0 {
		bounds := "from " + p.From
		if p.Before != "" {
			bounds += " to before " + p.Before
		}
		d.addWarning("EngineVersionUnchecked", "engineVersion", fmt.Sprintf("%s is written for %s %s, not for %s", p.ID(), p.Title, bounds, d.engine),
			"compare flags and metrics with the documentation of this version")
	}
}

func (d *draft) checkModel() {
	var wrong, fix string
	if d.model, wrong, fix = parseModel(d.in.Model); wrong != "" {
		d.fail("ModelInvalid", "model", wrong, fix)
		return
	}
	if !slices.Contains(d.preset.Schemes, d.model.scheme) {
		d.fail("ModelUnsupported", "model", fmt.Sprintf("%s does not load models from %s://", d.preset.Title, d.model.scheme),
			"use "+strings.Join(d.preset.Schemes, ":// or ")+"://")
		return
	}
	if !d.model.isPinned() {
		d.addNote("ModelNotPinned", "model", "without a commit, instances that start later may load other weights", "add @ and the commit to the model's name")
	}
	if d.in.CachePath == "" && d.model.scheme != "file" {
		d.addNote("ModelNotCached", "/modelCache", "each new instance downloads the model", "set modelCache to keep it in the region")
	}
}

func (d *draft) checkNumbers() {
	if d.in.MemoryMiB == 0 {
		d.addNote("MemoryDefault", "/resources.memoryMib", "without it an instance has 512 MiB, which engines exceed while they load a model", "set it to what the engine needs besides the GPUs")
	}
	for _, n := range []struct {
		field string
		value int
	}{{"context", d.in.Context}, {"parallel.tensor", d.in.Parallel.Tensor}, {"parallel.pipeline", d.in.Parallel.Pipeline}, {"parallel.data", d.in.Parallel.Data}} {
		if n.value < 0 {
			d.fail("NumberInvalid", n.field, fmt.Sprintf("%d is below 0", n.value), "use a number above 0, or leave it out")
		}
	}
	if len(d.in.Name) > 256 || strings.HasPrefix(d.in.Name, "-") || strings.ContainsFunc(d.in.Name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		d.fail("NameInvalid", "name", "has spaces or control characters, begins with a dash, or is longer than 256 bytes", "use a name such as llama")
	}
}

// checkOptions refuses a flag that is set twice, by options or fields, and a flag that Windlass sets.
func (d *draft) checkOptions() {
	seen := map[string]string{}
	for _, name := range d.in.optionNames() {
		field := "options." + name
		if !optionName(name) {
			d.fail("OptionInvalid", "options", fmt.Sprintf("%q is not the name of a flag", clipText(name)), "write the flag without its dashes, such as kv-cache-dtype")
			continue
		}
		long := d.preset.flagOf(name)
		if first, twice := seen[long]; twice {
			d.fail("FlagTwice", field, fmt.Sprintf("is the same flag as options.%s", first), "keep one of them")
			continue
		}
		seen[long] = name
		by, taken := d.preset.taken[long]
		if d.in.hostCount() > 1 && slices.Contains(d.preset.ranks, long) {
			by, taken = "", true
		}
		if taken && by == "" {
			d.fail("FlagTaken", field, "is set by Windlass, which gives each instance its own", "remove it")
		} else if taken && d.hasInput(by) {
			d.fail("FlagTwice", field, fmt.Sprintf("is the flag that %s sets", by), "keep one of them")
		} else if taken {
			d.fail("FlagTaken", field, fmt.Sprintf("is the flag of the field %s", by), fmt.Sprintf("set %s instead", by))
		}
	}
}

// hasInput reports whether the input has a value of the field.
func (d *draft) hasInput(field string) bool {
	switch field {
	case "context":
		return d.in.Context > 0
	case "name":
		return d.in.Name != ""
	case "parallel.tensor":
		return d.in.Parallel.Tensor > 0
	case "parallel.pipeline":
		return d.in.Parallel.Pipeline > 0
	case "parallel.data":
		return d.in.Parallel.Data > 0
	}
	return true
}

func (p *Preset) flagOf(option string) string {
	for _, dashes := range []string{"--", "-"} {
		if long, ok := p.Aliases[dashes+option]; ok {
			return long
		}
	}
	return "--" + option
}

func (d *draft) setOptions() {
	for _, name := range d.in.optionNames() {
		o, long := d.in.Options[name], d.preset.flagOf(name)
		if o.Off {
			d.flags.remove(long)
			continue
		}
		d.flags.set(long, o.Values...)
	}
}

// checkHosts reports whether the preset can make a server on the instance's hosts. If not, it adds an error.
func (d *draft) checkHosts() (ok bool) {
	n, p := d.in.hostCount(), d.preset
	const field = "/roles[0].hosts"
	switch {
	case n == 1:
		return true
	case !p.severalHosts && strings.HasPrefix(p.Name, CustomPrefix):
		d.fail("HostsUnsupported", field, fmt.Sprintf("the definition of preset %s does not say how a server runs on several hosts, and an instance has %d", p.Name, n),
			"remove hosts, or set hosts in the definition and start the ranks by $(WINDLASS_RANK) and $(WINDLASS_LEADER)")
	case !p.severalHosts:
		d.fail("HostsUnsupported", field, fmt.Sprintf("preset %s makes a server on one host, and an instance has %d", p.Name, n), "remove hosts, or write image and args in the place of serve")
	case p.hostsFrom != "" && compareVersions(d.engine, p.hostsFrom) < 0:
		d.fail("HostsUnsupported", "engineVersion", fmt.Sprintf("preset %s makes a server on several hosts with %s %s and newer, not with %s", p.Name, p.Title, p.hostsFrom, d.engine),
			fmt.Sprintf("set it to %s or newer, or remove hosts", p.hostsFrom))
	case d.in.GPU.Count == 0 && p.axes.tensor:
		d.fail("HostsUnsupported", "/resources.gpu", fmt.Sprintf("a model is split over the GPUs of %d hosts, and the app asks for none", n), "set resources.gpu.count, or remove hosts")
	default:
		return true
	}
	return false
}

// splitModel decides how the model is split over the GPUs.
func (d *draft) splitModel() {
	p, asked := d.preset, d.in.Parallel
	for _, a := range []struct {
		has   bool
		name  string
		value int
	}{{p.axes.tensor, "tensor", asked.Tensor}, {p.axes.pipeline, "pipeline", asked.Pipeline}, {p.axes.data, "data", asked.Data}} {
		if !a.has && a.value > 0 {
			d.fail("ParallelUnsupported", "parallel."+a.name, fmt.Sprintf("%s does not support this kind of parallelism", p.Title), "remove it")
			return
		}
	}
	gpus, hosts := d.in.GPU.Count, d.in.hostCount()
	if gpus == 0 && p.axes.tensor {
		d.addNote("NoGPU", "/resources.gpu", fmt.Sprintf("the app asks for no GPU, so %s runs on a CPU if its build supports that", p.Title), "set resources.gpu.count")
	}
	d.parallel = Parallel{Tensor: max(1, asked.Tensor), Pipeline: max(1, asked.Pipeline), Data: max(1, asked.Data)}
	if !p.axes.tensor {
		return
	}
	if o, ok := d.in.Options["enable-dp-attention"]; ok && !o.Off {
		d.parallel.Data = 1 // Data-parallel attention shares the GPUs of tensor parallelism.
	}
	if hosts > 1 && d.parallel.Data > 1 {
		d.fail("ParallelUnsupported", "parallel.data", fmt.Sprintf("an instance has %d hosts, and Windlass starts copies of a model on one host only", hosts), "remove it, and raise replicas")
		return
	}
	gpus *= hosts
	others := d.parallel.Pipeline * d.parallel.Data
	if asked.Tensor == 0 && gpus > 0 && gpus%others == 0 {
		d.parallel.Tensor = gpus / others
	}
	if product := d.parallel.Tensor * others; product != max(1, gpus) {
		text := fmt.Sprintf("tensor %d x pipeline %d x data %d is %d, and an instance has %d GPUs", d.parallel.Tensor, d.parallel.Pipeline, d.parallel.Data, product, gpus)
		if hosts > 1 {
			text += fmt.Sprintf(" on %d hosts", hosts)
		}
		d.fail("ParallelMismatch", "parallel", text, parallelFix(gpus, product, others, hosts))
		return
	}
	if f := d.in.Facts; f != nil && f.Heads > 0 && f.Heads%d.parallel.Tensor != 0 {
		d.fail("HeadsNotDivisible", "parallel.tensor", fmt.Sprintf("the model has %d attention heads, which %d GPUs cannot share evenly", f.Heads, d.parallel.Tensor),
			fmt.Sprintf("set tensor to a divisor of %d, and pipeline or data so that the product is the number of GPUs", f.Heads))
	}
}

func parallelFix(gpus, product, others, hosts int) string {
	switch {
	case hosts > 1 && gpus%others == 0:
		return fmt.Sprintf("set parallel.tensor to %d; without tensor, it is derived", gpus/others)
	case hosts > 1:
		return "set parallel so that the product is the number of GPUs of all hosts"
	case gpus > 0 && gpus%others == 0:
		return fmt.Sprintf("set resources.gpu.count to %d or parallel.tensor to %d; without tensor, it is derived", product, gpus/others)
	}
	return fmt.Sprintf("set resources.gpu.count to %d, or change parallel", product)
}

// start sets the health check, the time for loading a model, and the time for requests to end.
func (d *draft) start(health string, grace time.Duration) {
	d.spec.HealthCheck = &windlassv1.HealthCheck{Path: health, StartupBudget: durationpb.New(30 * time.Minute)}
	// The deadline of a rollout is longer than an instance may take to start.
	d.spec.ProgressDeadline = durationpb.New(40 * time.Minute)
	d.spec.TerminationGrace = durationpb.New(grace)
}

func (d *draft) setPort(number int32) {
	d.spec.Ports = []*windlassv1.Port{{Name: "http", Port: number}}
}

func (d *draft) setEnv(name, value string) {
	if d.spec.Env == nil {
		d.spec.Env = map[string]string{}
	}
	d.spec.Env[name] = value
}

// setShm requests shared memory, through which the processes of an instance exchange tensors.
func (d *draft) setShm(mib int32) { d.spec.Resources = &windlassv1.Resources{ShmMib: mib} }

// setIf sets a flag if the value is not empty.
func (d *draft) setIf(name, value string) {
	if value != "" {
		d.flags.set(name, value)
	}
}

// setNumber sets a flag if the number is above least.
func (d *draft) setNumber(name string, value, least int) {
	if value > least {
		d.flags.set(name, strconv.Itoa(value))
	}
}

// weightsName returns the model as a name on the hub, a path or a URL, as most engines take it.
func (d *draft) weightsName() string {
	switch d.model.scheme {
	case "hf", "file":
		return d.model.path
	}
	return d.model.scheme + "://" + d.model.path
}

func optionName(name string) bool {
	if name == "" || len(name) > 128 || name[0] == '-' {
		return false
	}
	const signs = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	return strings.Trim(name, signs) == ""
}

func versionText(version string) bool { return optionName(version) }

// compareVersions compares the numbers of versions such as "0.5.9" and "b4719". A missing number is 0.
func compareVersions(a, b string) int {
	left, right := versionNumbers(a), versionNumbers(b)
	for i := range max(len(left), len(right)) {
		var x, y int
		if i < len(left) {
			x = left[i]
		}
		if i < len(right) {
			y = right[i]
		}
		if x != y {
			return cmp.Compare(x, y)
		}
	}
	return 0
}

// versionNumbers returns the leading numbers of a version's parts, until a part without a number: 0.5.9rc1 is 0, 5, 9.
func versionNumbers(version string) []int {
	var list []int
	for part := range strings.SplitSeq(strings.TrimLeft(version, "abcdefghijklmnopqrstuvwxyz"), ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			break
		}
		list = append(list, n)
	}
	return list
}
