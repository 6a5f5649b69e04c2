// Package ocr has the arithmetic around the models of PP-OCR: how a picture becomes tensors, and how their outputs become
// boxes, orientations and text. It calls no model. Text must be horizontal, or upside down.
package ocr

import (
	"cmp"
	"fmt"
	"image"
	"image/color"
	"math"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
)

const (
	// longestSide is the longest side of a picture for the detection. Larger pictures are made smaller.
	longestSide = 960
	// sideStep is what sides of a picture for the detection must be multiples of.
	sideStep = 32
	// textAbove is the probability from which a pixel belongs to text. boxAbove is the mean probability of a box.
	textAbove, boxAbove = 0.3, 0.6
	// unclip is by how much boxes grow, as a share of area by perimeter, because the detection marks the inner part of
	// text.
	unclip = 1.6
	// turnedAbove is the probability from which a line is turned.
	turnedAbove = 0.9
	// lineHeight is the height of a line for the recognition, and orientationWidth the width for the orientation.
	lineHeight       = 48
	orientationWidth = 192
	// maxLineWidth limits the width of a line.
	maxLineWidth = 3200
)

// DetectionInput returns the tensor for the detection of text.
func DetectionInput(picture image.Image) tensor.Tensor {
	size := picture.Bounds().Size()
	scale := math.Min(1, longestSide/float64(max(size.X, size.Y)))
	side := func(n int) int {
		return max(sideStep, int(math.Round(float64(n)*scale/sideStep))*sideStep)
	}
	mean, deviation := [3]float32{0.485, 0.456, 0.406}, [3]float32{0.229, 0.224, 0.225}
	return pixelsOf(picture, picture.Bounds(), side(size.X), side(size.Y), 0, mean, deviation)
}

// Boxes returns the boxes of text in a picture, from top to bottom. probabilities is the output of the detection, and
// shape its shape.
func Boxes(picture image.Rectangle, probabilities []float32, shape []int64) ([]image.Rectangle, error) {
	if len(shape) != 4 || shape[0] != 1 || shape[1] != 1 || int64(len(probabilities)) != shape[2]*shape[3] {
		return nil, fmt.Errorf("the detection returned the shape %v, not [1 1 HEIGHT WIDTH]", shape)
	}
	height, width := int(shape[2]), int(shape[3])
	seen := make([]bool, len(probabilities))
	var boxes []image.Rectangle
	for at := range probabilities {
		if seen[at] || probabilities[at] < textAbove {
			continue
		}
		box, mean := fillBox(probabilities, seen, width, height, at)
		if mean < boxAbove || min(box.Dx(), box.Dy()) < 3 {
			continue
		}
		grow := int(math.Round(float64(box.Dx()*box.Dy()) * unclip / float64(2*(box.Dx()+box.Dy()))))
		box = box.Inset(-grow)
		scaleX, scaleY := float64(picture.Dx())/float64(width), float64(picture.Dy())/float64(height)
		scaled := image.Rect(int(float64(box.Min.X)*scaleX), int(float64(box.Min.Y)*scaleY), int(math.Ceil(float64(box.Max.X)*scaleX)), int(math.Ceil(float64(box.Max.Y)*scaleY)))
		boxes = append(boxes, scaled.Add(picture.Min).Intersect(picture))
	}
	slices.SortFunc(boxes, func(a, b image.Rectangle) int {
		// Boxes whose centers are within half a line of each other are on one line.
		if absolute(a.Min.Y+a.Max.Y-b.Min.Y-b.Max.Y) < min(a.Dy(), b.Dy()) {
			return cmp.Compare(a.Min.X, b.Min.X)
		}
		return cmp.Compare(a.Min.Y, b.Min.Y)
	})
	return boxes, nil
}

func absolute(n int) int { return max(n, -n) }

// fillBox marks the pixels of text that are connected with a pixel. It returns their box and their mean probability.
func fillBox(probabilities []float32, seen []bool, width, height, first int) (box image.Rectangle, mean float32) {
	box = image.Rect(first%width, first/width, first%width+1, first/width+1)
	stack, sum, count := []int{first}, float32(0), 0
	seen[first] = true
	for len(stack) > 0 {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		x, y := at%width, at/width
		box = box.Union(image.Rect(x, y, x+1, y+1))
		sum += probabilities[at]
		count++
		for _, next := range [][2]int{{x - 1, y}, {x + 1, y}, {x, y - 1}, {x, y + 1}} {
			if next[0] < 0 || next[1] < 0 || next[0] >= width || next[1] >= height {
				continue
			}
			if to := next[1]*width + next[0]; !seen[to] && probabilities[to] >= textAbove {
				seen[to] = true
				stack = append(stack, to)
			}
		}
	}
	return box, sum / float32(count)
}

// half normalizes pixels to -1 to 1.
var half = [3]float32{0.5, 0.5, 0.5}

// OrientationInput returns the tensor for the orientation of a line of text.
func OrientationInput(picture image.Image, box image.Rectangle) tensor.Tensor {
	width := min(orientationWidth, lineWidth(box))
	return pixelsOf(picture, box, width, lineHeight, orientationWidth, half, half)
}

// IsTurned reports whether the output of the orientation says that a line is upside down.
func IsTurned(probabilities []float32) bool {
	return len(probabilities) == 2 && probabilities[1] > turnedAbove
}

// RecognitionInput returns the tensor for the recognition of a line of text.
func RecognitionInput(picture image.Image, box image.Rectangle) tensor.Tensor {
	width := min(maxLineWidth, lineWidth(box))
	return pixelsOf(picture, box, width, lineHeight, max(width, 320), half, half)
}

func lineWidth(box image.Rectangle) int {
	return max(1, int(math.Ceil(float64(lineHeight)*float64(box.Dx())/float64(max(1, box.Dy())))))
}

// Characters returns the characters by class of the recognition. lines has one character in each line. Class 0 is no
// character, and the last class is a space.
func Characters(lines string) []string {
	return append(append([]string{""}, strings.Split(strings.TrimSuffix(lines, "\n"), "\n")...), " ")
}

// Text returns the text of a line, and the mean probability of its characters. probabilities is the output of the
// recognition, and shape its shape.
func Text(probabilities []float32, shape []int64, characters []string) (string, float32, error) {
	if len(shape) != 3 || shape[0] != 1 || int64(len(probabilities)) != shape[1]*shape[2] || int(shape[2]) != len(characters) {
		return "", 0, fmt.Errorf("the recognition returned the shape %v, and there are %d characters", shape, len(characters))
	}
	var text strings.Builder
	classes, last, sum, count := int(shape[2]), 0, float32(0), 0
	for step := range int(shape[1]) {
		row := probabilities[step*classes : (step+1)*classes]
		best := 0
		for class, p := range row {
			if p > row[best] {
				best = class
			}
		}
		// A character that spans several steps is repeated. Between equal characters is a step without a character.
		if best != 0 && best != last {
			text.WriteString(characters[best])
			sum += row[best]
			count++
		}
		last = best
	}
	return text.String(), sum / float32(max(1, count)), nil
}

// turned is a picture upside down.
type turned struct{ image.Image }

// At returns the pixel at the opposite point.
func (t turned) At(x, y int) color.Color {
	b := t.Bounds()
	return t.Image.At(b.Max.X-1-(x-b.Min.X), b.Max.Y-1-(y-b.Min.Y))
}

// Turn returns the part of a picture in the box, upside down.
func Turn(picture image.Image, box image.Rectangle) (image.Image, image.Rectangle) {
	b := picture.Bounds()
	corner := image.Pt(b.Min.X+b.Max.X, b.Min.Y+b.Max.Y)
	return turned{picture}, image.Rectangle{Min: corner.Sub(box.Max), Max: corner.Sub(box.Min)}
}

// pixelsOf returns the pixels of a box as a tensor [1, 3, height, max(width, paddedWidth)]. The box is scaled to width
// and height. Columns after width are 0. The channels are blue, green and red, as in the training of the models.
func pixelsOf(picture image.Image, box image.Rectangle, width, height, paddedWidth int, mean, deviation [3]float32) tensor.Tensor {
	columns := max(width, paddedWidth)
	values := make([]float32, 3*height*columns)
	scaleX, scaleY := float64(box.Dx())/float64(width), float64(box.Dy())/float64(height)
	for y := range height {
		for x := range width {
			pixel := samplePixel(picture, box, (float64(x)+0.5)*scaleX-0.5, (float64(y)+0.5)*scaleY-0.5)
			for channel := range 3 {
				values[(channel*height+y)*columns+x] = (pixel[2-channel] - mean[channel]) / deviation[channel]
			}
		}
	}
	return tensor.FromFloats("x", []int64{1, 3, int64(height), int64(columns)}, values)
}

// samplePixel returns red, green and blue, from 0 to 1, between the four pixels around a point of the box.
func samplePixel(picture image.Image, box image.Rectangle, x, y float64) (pixel [3]float32) {
	left, top := math.Floor(x), math.Floor(y)
	for _, corner := range [][2]float64{{0, 0}, {1, 0}, {0, 1}, {1, 1}} {
		weight := float32((1 - math.Abs(x-left-corner[0])) * (1 - math.Abs(y-top-corner[1])))
		px := min(max(int(left+corner[0]), 0), box.Dx()-1)
		py := min(max(int(top+corner[1]), 0), box.Dy()-1)
		r, g, b, _ := picture.At(box.Min.X+px, box.Min.Y+py).RGBA()
		for i, v := range []uint32{r, g, b} {
			pixel[i] += weight * float32(v) / 0xffff
		}
	}
	return pixel
}
