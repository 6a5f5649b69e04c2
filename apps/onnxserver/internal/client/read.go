package client

import (
	"context"
	"fmt"
	"image"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/ocr"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/sound"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
)

// Reader reads text with three models.
type Reader struct {
	Detection, Orientation, Recognition Model
	// Characters are the characters of the recognition.
	Characters []string
}

// Line is a line of text. Sure is the mean probability of its characters.
type Line struct {
	Text       string
	Sure       float32
	UpsideDown bool
}

// Read returns the lines of a picture, from top to bottom.
func (r Reader) Read(ctx context.Context, picture image.Image) ([]Line, error) {
	values, shape, err := r.Detection.runOn(ctx, ocr.DetectionInput(picture))
	if err != nil {
		return nil, err
	}
	boxes, err := ocr.Boxes(picture.Bounds(), values, shape)
	if err != nil {
		return nil, err
	}
	var lines []Line
	for _, box := range boxes {
		values, _, err := r.Orientation.runOn(ctx, ocr.OrientationInput(picture, box))
		if err != nil {
			return nil, err
		}
		part, line := picture, Line{UpsideDown: ocr.IsTurned(values)}
		if line.UpsideDown {
			part, box = ocr.Turn(picture, box)
		}
		if values, shape, err = r.Recognition.runOn(ctx, ocr.RecognitionInput(part, box)); err != nil {
			return nil, err
		}
		if line.Text, line.Sure, err = ocr.Text(values, shape, r.Characters); err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// runOn returns the floats and the shape of the only output.
func (m Model) runOn(ctx context.Context, input tensor.Tensor) ([]float32, []int64, error) {
	outputs, _, err := m.Infer(ctx, input)
	if err != nil {
		return nil, nil, err
	}
	if len(outputs) != 1 {
		return nil, nil, fmt.Errorf("model %s has %d outputs, not 1", m.Name, len(outputs))
	}
	for _, t := range outputs {
		input = t
	}
	values, err := input.Floats()
	return values, input.Shape, err
}

// Listen returns the probability of speech of each window of a sound, and how many windows each version of the model
// judged.
func (m Model) Listen(ctx context.Context, samples []float32) ([]float32, map[string]int, error) {
	state, versions := sound.FirstState(), map[string]int{}
	var probabilities []float32
	for _, window := range sound.Windows(samples) {
		outputs, version, err := m.Infer(ctx, window, state, sound.RateInput())
		if err != nil {
			return nil, nil, err
		}
		values, err := outputs["output"].Floats()
		if err != nil {
			return nil, nil, err
		}
		if len(values) != 1 {
			return nil, nil, fmt.Errorf("model %s returned %d probabilities, not 1", m.Name, len(values))
		}
		versions[version]++
		probabilities = append(probabilities, values[0])
		// The state of one version is valid for the other, because both have the same architecture.
		state = outputs["stateN"]
		state.Name = "state"
	}
	return probabilities, versions, nil
}
