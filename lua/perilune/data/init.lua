-- SPDX-License-Identifier: MIT
--- Datasets and batches.
-- @module perilune.data
local dataset = require "perilune.data.dataset"
local mnist = require "perilune.data.mnist"
local DataLoader = require "perilune.data.loader"

return {
  Dataset = dataset.Dataset,
  TensorDataset = dataset.TensorDataset,
  Subset = dataset.Subset,
  ConcatDataset = dataset.ConcatDataset,
  random_split = dataset.random_split,
  DataLoader = DataLoader,
  default_collate = DataLoader.default_collate,
  fashion_mnist = mnist.fashion_mnist,
  mnist = mnist.mnist,
}
