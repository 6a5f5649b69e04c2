package process

import (
	"fmt"
	"strings"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// ImageCommands has the commands that a host runs instead of the entry points of images, by
// repository.
type ImageCommands map[string][]string

// ParseImageCommands reads values of the form IMAGE=COMMAND. IMAGE is a repository without a tag.
// COMMAND is words separated by spaces. No shell interprets them.
func ParseImageCommands(list []string) (ImageCommands, error) {
	table := ImageCommands{}
	for _, text := range list {
		image, command, _ := strings.Cut(text, "=")
		words := strings.Fields(command)
		switch {
		case image == "" || strings.ContainsAny(image, " \t@") || repositoryOf(image) != image:
			return nil, fmt.Errorf("%q: want IMAGE=COMMAND, IMAGE without a tag or digest, such as vllm/vllm-openai=vllm serve", text)
		case len(words) == 0:
			return nil, fmt.Errorf("%q: want IMAGE=COMMAND, such as vllm/vllm-openai=vllm serve", text)
		case table[image] != nil:
			return nil, fmt.Errorf("%q: image %s is given twice", text, image)
		}
		table[image] = words
	}
	return table, nil
}

// repositoryOf returns the name of an image without its tag and digest.
func repositoryOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if colon := strings.LastIndexByte(image, ':'); colon > strings.LastIndexByte(image, '/') {
		image = image[:colon]
	}
	return image
}

// commandOf returns the command of the role, or the host's command for its image. It is empty if
// the host has none.
func (r *Runtime) commandOf(ro runtime.Role) []string {
	if len(ro.Command) > 0 {
		return ro.Command
	}
	return r.cfg.ImageCommands[repositoryOf(ro.Image)]
}
