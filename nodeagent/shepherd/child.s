// This file is here so that the compiler takes function declarations without a body: those of
// child.go are the runtime's.
