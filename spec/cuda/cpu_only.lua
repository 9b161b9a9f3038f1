-- SPDX-License-Identifier: MIT
-- Specs and cases that make no sense with tensors on the device, each with its reason: they are counted as pending
-- under PERILUNE_TEST_DEVICE (spec/support/device.lua). file → reason, or { part of a case's name → reason }.
local M = { cuda = {}, moved = {} }
return M
